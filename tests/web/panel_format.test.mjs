import assert from 'node:assert/strict'
import test from 'node:test'

import {
  computeShare,
  describePlan,
  describePlans,
  formatBytes,
  formatBytesOf,
  formatDateAndTime,
  formatPercent,
  formatSeconds,
  formatSpeedup,
  formatTime,
  getFileName,
  shortenCardName
} from '../../web/panel/format.mjs'
import { layOutBars, makePaths } from '../../web/panel/timeline.mjs'

const t = (path, values = {}) => [path, ...Object.values(values)].join(' ')
const near = (actual, wanted) => assert.ok(Math.abs(actual - wanted) < 1e-9, `${actual} is not ${wanted}`)

test('bytes, seconds and shares', () => {
  assert.equal(formatBytes(0), '0 MiB')
  assert.equal(formatBytes(812 * 2 ** 20), '812 MiB')
  assert.equal(formatBytes(1.25 * 2 ** 30), '1.3 GiB')
  assert.equal(formatBytes(128 * 2 ** 30), '128 GiB')
  const wanted = { 0.0031: '3 ms', 0.42: '0.42 s', 4.013: '4.01 s', 6: '6 s', 12.34: '12.3 s', 59.97: '1 min 0 s' }
  for (const [count, words] of Object.entries({ ...wanted, 402.3: '6 min 42 s' })) {
    assert.equal(formatSeconds(Number(count)), words)
  }
  assert.equal(formatPercent(0.184), '18%')
})

test('two sizes of one unit name it once', () => {
  const said = (used, total) => formatBytesOf(used, total, (some, all) => `${some} of ${all}`)
  assert.equal(said(20.5 * 2 ** 30, 23.6 * 2 ** 30), '20.5 of 23.6 GiB')
  assert.equal(said(812 * 2 ** 20, 15.6 * 2 ** 30), '812 MiB of 15.6 GiB')
})

test('a card is named by the words that tell it from other cards', () => {
  const names = {
    'NVIDIA GeForce RTX 4090': 'RTX 4090',
    'NVIDIA RTX 6000 Ada Generation': 'RTX 6000 Ada',
    'NVIDIA H100 80GB HBM3': 'H100 80GB HBM3',
    'AMD Radeon RX 7900 XTX': 'RX 7900 XTX',
    'Intel(R) Arc(TM) A770 Graphics': 'Arc A770',
    'AMD Radeon Graphics': 'AMD Radeon Graphics'
  }
  for (const [name, wanted] of Object.entries(names)) assert.equal(shortenCardName(name), wanted)
})

test('a speedup has two digits', () => {
  assert.deepEqual([1.84, 0.31, 0.04, 9.96, 12.4].map(formatSpeedup), ['1.8', '0.3', '0.04', '10', '12'])
})

test('times have 24 hours in every language', () => {
  for (const language of ['en', 'zh']) {
    assert.equal(formatTime(new Date(2026, 10, 3, 23, 59, 0), language), '23:59:00')
    assert.equal(formatTime(new Date(2026, 10, 3, 0, 0, 9), language), '00:00:09')
    assert.ok(formatDateAndTime(new Date(2026, 10, 3, 15, 4, 5), language).endsWith('15:04:05'))
  }
})

test('the name of a file is the end of a path, with slashes or backslashes', () => {
  assert.equal(getFileName('/models/flux1-dev.safetensors'), 'flux1-dev.safetensors')
  assert.equal(getFileName('C:\\models\\flux1-dev.safetensors'), 'flux1-dev.safetensors')
})

test("communication's share is of all steps together", () => {
  assert.equal(computeShare([]), 0)
  const steps = [
    [5, 1],
    [1, 0.5],
    [2, 0.5]
  ]
  assert.equal(computeShare(steps), 0.25)
})

test('a plan is described with the field names of its Python class', () => {
  const one = { dp: 1, cfg: 1, pipefusion: 1, ring: 1, ulysses: 1, patches: 0, sync_steps: 1, attention: 'auto' }
  assert.equal(describePlan(one, t), 'panel.planOneRank')
  assert.equal(describePlan({ ...one, ulysses: 4, cfg: 2 }, t), 'cfg=2 × ulysses=4')
  const patches = 'pipefusion=2 × panel.planPatches 2 1 × panel.planAttention flash'
  assert.equal(describePlan({ ...one, pipefusion: 2, attention: 'flash' }, t), patches)
  const weights = 'ring=2 × panel.planWeightsOf host 3 × panel.planCompiled.auto'
  assert.equal(describePlan({ ...one, ring: 2, weights: 'host', weight_blocks: 3, compile: 'auto' }, t), weights)
  assert.equal(describePlans([{ ...one, cfg: 2 }, one], t), 'cfg=2, panel.planOneRank')
  assert.equal(describePlans([], t), 'auto')
  assert.equal(describePlan({ ...one, ulysses: 2, exchange_dtype: 'int4' }, t), 'ulysses=2 × panel.planExchange int4')
  assert.equal(describePlan({ ...one, ring: 2, exchange_dtype: 'model' }, t), 'ring=2')
  assert.equal(describePlan({ ...one, ring: 3, speeds: [4, 2, 1.3333] }, t), 'ring=3 × panel.planSpeeds 1:0.5:0.333')
})

test('bars are as high as their time, with communication inside', () => {
  const drawn = layOutBars(
    [
      [2, 1],
      [4, 1],
      [3, 0]
    ],
    20
  ).bars
  assert.deepEqual(
    drawn.map(({ number }) => number),
    [1, 2, 3]
  )
  near(drawn[1].height, 1)
  near(drawn[0].height, 0.5)
  near(drawn[0].below, 0.25)
  assert.equal(drawn[2].below, 0)
  assert.ok(drawn.every(({ cut }) => !cut))
})

test('all bars of a colour are one path', () => {
  const steps = [
    [2, 1],
    [2, 0],
    [9, 0],
    [2, 2]
  ]
  const found = makePaths(layOutBars(steps, 100))
  const corners = (outline) => (outline.match(/M/g) ?? []).length
  assert.deepEqual([corners(found.compute), corners(found.communication), corners(found.cut)], [3, 2, 1])
  assert.equal(found.compute.split('z')[0], 'M0 20.00h10v10.00h-10', 'half of the height, without gaps: many slots')
  assert.equal(makePaths(layOutBars([], null)).compute, '')
})

test('one slow step does not make the other bars small', () => {
  const [slow, ...others] = layOutBars(
    [
      [100, 50],
      [1, 0],
      [1, 0],
      [1, 0]
    ],
    4
  ).bars
  assert.deepEqual([slow.cut, slow.height, slow.below], [true, 1, 0.5])
  near(others[0].height, 0.5)
})

test('bars leave room for the steps to come, and show the end of a long run', () => {
  assert.equal(layOutBars([[1, 0]], 20).slots, 20)
  assert.ok(layOutBars([[1, 0]], null).slots > 1)
  const end = layOutBars(Array(500).fill([1, 0]), 900, 401)
  assert.deepEqual([end.slots, end.bars[0].number, end.bars.at(-1).number], [500, 401, 900])
  assert.deepEqual(layOutBars([], 20).bars, [])
  assert.equal(layOutBars([[0, 0]], 1).bars[0].height, 0)
})
