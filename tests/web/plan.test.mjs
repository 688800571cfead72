import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { describeFit, describeRemedies } from '../../web/figures/memory.mjs'
import { describePrediction, explainNoPrediction } from '../../web/figures/predicted.mjs'
import { describeLine } from '../../web/loader/brief.mjs'
import { makeAsker } from '../../web/plan/ask.mjs'
import { describeMissing, findAddress } from '../../web/plan/files.mjs'
import {
  countColumns,
  describeCell,
  describeMesh,
  describeRemark,
  describeTitle,
  groupRanks
} from '../../web/plan/mesh.mjs'
import { findText } from '../../web/words.mjs'

const texts = (language) =>
  JSON.parse(readFileSync(new URL(`../../locales/${language}/main.json`, import.meta.url))).paralleldit
const en = texts('en')
const say = (path, values) => findText([en], path, values)

/** Ranks as the server tells them, of cfg branches × stages × ulysses. */
function answerOf(cfg, pipefusion, ulysses) {
  const ranks = []
  for (let batch = 0; batch < cfg; batch++)
    for (let stage = 0; stage < pipefusion; stage++)
      for (let share = 0; share < ulysses; share++)
        ranks.push({
          rank: ranks.length,
          branch: cfg === 2 ? ['cond', 'uncond'][batch] : null,
          share: [batch, cfg],
          rows: [batch / cfg, (batch + 1) / cfg],
          stage: [stage, pipefusion],
          blocks: pipefusion > 1 ? [stage * 4, stage * 4 + 3] : [0, 7],
          heads: [share * 2, share * 2 + 1],
          tokens: [[share / ulysses, (share + 1) / ulysses]],
          head_share: ulysses > 1 ? [share / ulysses, (share + 1) / ulysses] : null
        })
  return { ranks, world: ranks.length }
}

/** What is said of each rank. */
function toldOf(answer) {
  return groupRanks(answer).flatMap((group) =>
    group.stages.flatMap((stage) =>
      stage.cells.map((cell) => describeCell(cell, group, stage, answer.device ?? 'cpu', say))
    )
  )
}

test('ranks are grouped into branches, stages and cells, and described in words', () => {
  const answer = answerOf(2, 2, 2)
  const groups = groupRanks(answer)
  assert.deepEqual(
    groups.map((group) => group.stages.map((stage) => stage.cells.map((cell) => cell.rank))),
    [
      [
        [0, 1],
        [2, 3]
      ],
      [
        [4, 5],
        [6, 7]
      ]
    ]
  )
  assert.deepEqual(groups[1].stages[1].cells[1].heads, [0.5, 1])
  assert.equal(describeMesh(groups, answer.world, say), '8 ranks')
  const [first, last] = [toldOf(answer)[0], toldOf(answer)[7]]
  assert.equal(first, 'Rank 0 on CPU: positive, blocks 0–3, tokens 0–50 %, heads 0–1 in attention')
  assert.equal(last, 'Rank 7 on CPU: negative, blocks 4–7, tokens 50–100 %, heads 2–3 in attention')
})

test('a rank is described with its card, and with the weights that it keeps if known', () => {
  const GIB = 2 ** 30
  const answer = answerOf(1, 2, 1)
  answer.ranks[0].card = { index: 2, name: 'RTX 4090', total: 24 * GIB }
  const told = toldOf({ ...answer, device: 'cuda', memory: { kept: [3 * GIB, 4 * GIB] } })
  assert.equal(told[0], 'Rank 0 on GPU 2 (RTX 4090): blocks 0–3, all tokens, 3.0 GiB of weights')
  assert.equal(told[1], 'Rank 1: blocks 4–7, all tokens, 4.0 GiB of weights')
})

test('the number of columns fills all rows if a small number does', () => {
  const columns = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16].map((count) => countColumns(count))
  assert.deepEqual(columns, [1, 2, 3, 4, 4, 3, 4, 4, 3, 4, 4])
})

test('one line says whether a plan fits, where the least memory is left, and another what would fit', () => {
  const GIB = 2 ** 30
  const card = { index: 1, name: 'B' }
  const told = (tight, working = GIB, device = 'cuda') =>
    describeFit({ memory: { tight: { card, fits: true, ...tight }, working }, device }, say)
  const sizes = { needs: 24.2 * GIB, usable: 23.6 * GIB }
  assert.deepEqual(told({ needs: 12 * GIB, usable: 23.6 * GIB }), {
    text: 'Fits: needs 12.0 of 23.6 GiB usable',
    lacks: false
  })
  const lacks = { text: 'Does not fit: needs 24.2 of 23.6 GiB usable', lacks: true }
  assert.deepEqual(told({ ...sizes, fits: false }), lacks)
  const ranks = ['A', 'B'].map((name) => ({ card: { name, total: GIB } }))
  const memory = { tight: { ...sizes, card, fits: false }, working: GIB }
  assert.match(describeFit({ memory, device: 'cuda', ranks }, say).text, /usable on GPU 1 \(B\)$/)
  assert.match(told({ ...sizes, fits: false, card: null }).text, /usable in RAM$/)
  assert.match(told({ ...sizes, fits: null }).text, /^Needs 24\.2 .* ComfyUI keeps the rest in RAM\.$/)
  assert.match(told({ needs: 1, usable: GIB }, null).text, /^Weights fit: .* known once/)
  assert.match(told({ needs: 1, usable: GIB, card: null }, null, 'cpu').text, /^Fits: /)
  assert.equal(describeFit({ memory: null }, say), null)
  const remedies = {
    words: 'would_fit',
    found: [
      { key: 'would_fp8', values: {} },
      { key: 'would_host', values: {} }
    ]
  }
  const either = (words) => words.join(' or ')
  assert.equal(
    describeRemedies({ memory: { remedies } }, either, say),
    'What would fit: fp8 weights or weights in RAM.'
  )
  assert.equal(describeRemedies({ memory: { remedies: null } }, either, say), null)
})

test('the plan is one line, which says so while auto tries plans', () => {
  const told = (more) =>
    describeTitle({ plan: 'ulysses=2', world: 2, device: 'cuda', is_auto: true, tried: null, ...more }, say)
  assert.equal(told({}), 'Automatic plan: 2 GPUs, ulysses=2')
  assert.equal(told({ is_auto: false, device: 'cpu' }), '2 CPU ranks, ulysses=2')
  assert.equal(told({ tried: [2, 3] }), 'Automatic plan: 2 GPUs, trying ulysses=2, 2 of 3')
  assert.equal(told({ plan: 'one rank', world: 1 }), 'Automatic plan: 1 GPU')
  assert.equal(told({ plan: 'one rank', world: 1, tried: [2, 2] }), 'Automatic plan: trying 1 GPU, 2 of 2')
})

test('missing files are one line, in the order in which they run, with the address that a template has', () => {
  const missing = ['high', 'low'].map((name) => ({ model: `sub/${name}.safetensors`, folder: 'diffusion_models' }))
  assert.equal(
    describeMissing({ missing }, say),
    'Missing in models/diffusion_models: high.safetensors, low.safetensors'
  )
  assert.equal(describeMissing({ missing: [] }, say), null)
  const models = [
    { name: 'high.safetensors', url: 'https://example.org/high' },
    { name: 'low.safetensors', url: 'javascript:alert()' }
  ]
  const graphs = [{ nodes: [{}, { properties: { models } }] }]
  assert.equal(findAddress(graphs, missing[0].model), 'https://example.org/high')
  assert.equal(findAddress(graphs, missing[1].model), null)
  assert.equal(findAddress(graphs, 'other'), null)
})

test("a group's share of the batch is shown if speeds decide it", () => {
  const answer = answerOf(2, 1, 1)
  const rows = [
    [0, 2 / 3],
    [2 / 3, 1]
  ]
  answer.ranks = answer.ranks.map((rank, index) => ({ ...rank, branch: null, rows: rows[index] }))
  assert.deepEqual(toldOf(answer), [
    'Rank 0 on CPU: batch 1/2, 67 %, all tokens',
    'Rank 1 on CPU: batch 2/2, 33 %, all tokens'
  ])
})

test('one rank holds everything, and more than sixteen ranks are counted', () => {
  const one = answerOf(1, 1, 1)
  assert.equal(describeMesh(groupRanks(one), 1, say), '1 rank')
  const many = answerOf(2, 4, 8)
  const told = describeMesh(groupRanks(many), many.world, say)
  assert.equal(told, '64 ranks: shares of the batch: 2, stages a share: 4, ranks a stage: 8')
})

test("a remark is in the editor's language if it is translated, else in the server's words", () => {
  const remark = { key: 'auto_gpus', values: { devices: 4 }, text: 'auto uses all 4 GPUs.' }
  assert.equal(describeRemark(remark, say), remark.text)
  const inChinese = (path, values) => findText([texts('zh'), en], path, values)
  assert.equal(describeRemark(remark, inChinese), 'auto 使用全部 4 块 GPU。')
})

const after = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

test('a burst of changes is one question, and the same question is not asked again', async () => {
  const sent = []
  const shown = []
  let question = 'a'
  const ask = makeAsker({
    pause: 10,
    read: () => question,
    send: async (text) => sent.push(text) && `${text}!`,
    show: (answer) => shown.push(answer)
  })
  for (question of ['a', 'b', 'c']) ask()
  await after(30)
  ask()
  await after(30)
  assert.deepEqual([sent, shown], [['c'], ['c!']])
  ask(true)
  await after(30)
  assert.deepEqual(sent, ['c', 'c'])
})

test('an answer to an older question is dropped, and after a failure the question is asked again', async () => {
  const shown = []
  const failed = []
  const waiting = {}
  let question = 'slow'
  const ask = makeAsker({
    pause: 1,
    read: () => question,
    send: (text) => new Promise((resolve, reject) => (waiting[text] = { resolve, reject })),
    show: (answer) => shown.push(answer),
    fail: (error) => failed.push(error.message)
  })
  ask()
  await after(15)
  question = 'fast'
  ask()
  await after(15)
  waiting.fast.resolve('fast!')
  waiting.slow.resolve('slow!')
  await after(5)
  assert.deepEqual(shown, ['fast!'])
  question = 'lost'
  ask()
  await after(15)
  waiting.lost.reject(new Error('gone'))
  await after(5)
  delete waiting.lost
  ask()
  await after(15)
  assert.deepEqual(failed, ['gone'])
  assert.ok(waiting.lost)
})

test('an answer from before a run ended is dropped, though the question is the same', async () => {
  const shown = []
  const waiting = []
  const ask = makeAsker({
    pause: 1,
    read: () => 'a',
    send: () => new Promise((resolve) => waiting.push(resolve)),
    show: (answer) => shown.push(answer)
  })
  ask()
  await after(15)
  ask(true)
  waiting[0]('before')
  await after(15)
  waiting[1]('after')
  await after(5)
  assert.deepEqual(shown, ['after'])
})

test('the best plans are listed with their seconds and bytes, and how these are known', () => {
  const GIB = 1 << 30
  const row = (plan, seconds, fits = true) => {
    const [axis, degree] = plan.split('=')
    return { plan, values: { [axis]: Number(degree) }, seconds, bytes: 12 * GIB, fits, has_run: false }
  }
  const best = [row('dp=2', 1.25), row('ulysses=2', 1.5), row('ring=2', 2, false)]
  const one_device = { ...row('one rank', 2.25), has_run: true, is_alone: true }
  const told = (plan, more) =>
    describePrediction({ predicted: { plan, best, one_device, is_measured: true, ...more } }, say)
  const first = told(best[0], {})
  assert.deepEqual(first.best, [
    { text: 'dp=2: 1.25 s a step, needs 12.0 GiB', fits: true },
    { text: 'ulysses=2: 1.5 s a step, needs 12.0 GiB', fits: true },
    { text: 'ring=2: 2 s a step, needs 12.0 GiB, does not fit', fits: false }
  ])
  assert.match(first.title, /measured here/)
  assert.deepEqual([first.chosen, first.own], [0, null])
  const other = told(row('cfg=2', 3), { is_measured: false })
  assert.equal(other.own, 'This plan: cfg=2: 3 s a step, needs 12.0 GiB')
  assert.match(other.title, /not measured yet/)
  assert.equal(other.chosen, -1)
  assert.equal(describePrediction({ predicted: null }, say), null)
  assert.equal(first.step, 'About 1.25 s a step (predicted)', 'one device has run, which is not compared')
  const neither = { one_device: { ...one_device, has_run: false } }
  assert.equal(told(best[0], neither).step, 'About 1.25 s a step, 1.8× as fast as one device (predicted)')
  const slower = told(row('cfg=2', 3), { ...neither, is_measured: false }).step
  assert.equal(slower, 'About 3 s a step, 0.8× as fast as one device (not measured yet)')
  const ran = { ...best[0], has_run: true }
  assert.equal(told(ran, {}).step, '1.25 s a step, 1.8× as fast as one device (measured)')
  assert.equal(told(ran, neither).step, '1.25 s a step (measured)', 'one device is only predicted')
  assert.equal(told({ ...ran, seconds: 2.25 }, {}).step, '2.25 s a step, as fast as one device (measured)')
  assert.equal(told(one_device, {}).step, '2.25 s a step (measured)')
  const lacking = { ...one_device, fits: false, has_run: false }
  assert.equal(
    told(best[0], { one_device: lacking }).step,
    'About 1.25 s a step (predicted). One device lacks the memory.'
  )
})

test('a known model without a prediction shows the reason', () => {
  const told = (answer) => explainNoPrediction({ memory: {}, predicted: null, sized: true, ...answer }, say)
  assert.match(told({ sized: false }), /it needs the latent's size/)
  assert.match(told({}), /^No estimate for this model/)
  assert.equal(told({ predicted: {} }), null)
  assert.equal(told({ memory: null }), null)
})

test('a loader says its plan in one line, and marks what does not run, fit or is not known', () => {
  const costs = (seconds, fits = true) => ({ seconds, fits })
  const told = (more) =>
    describeLine(
      {
        ...{ error: '', unknown: [], plan: 'ulysses=2', world: 2, device: 'cuda', ranks: [], memory: null },
        predicted: { plan: costs(1), one_device: costs(1.7) },
        ...more
      },
      (text) => text,
      say
    )
  const text = (more) => told(more).text
  assert.deepEqual(told({}), { text: '2 GPUs · ulysses=2 · 1.7× as fast as one', mark: null })
  assert.equal(text({ device: 'cpu', predicted: null }), '2 CPU ranks · ulysses=2')
  assert.equal(text({ plan: 'one rank', world: 1 }), '1 GPU')
  assert.equal(
    text({ predicted: { plan: costs(2), one_device: costs(1) } }),
    '2 GPUs · ulysses=2 · 0.5× as fast as one'
  )
  assert.equal(text({ predicted: { plan: costs(1), one_device: costs(1.01) } }), '2 GPUs · ulysses=2 · as fast as one')
  assert.equal(text({ predicted: { plan: costs(1), one_device: costs(3, false) } }), '2 GPUs · ulysses=2')
  const lacks = told({ memory: { tight: { needs: 2, usable: 1, card: null, fits: false }, working: 1 } })
  assert.deepEqual(lacks, { text: '2 GPUs · ulysses=2 · does not fit', mark: 'bad' })
  assert.deepEqual(told({ error: 'no' }), { text: 'no', mark: 'bad' })
  assert.deepEqual(told({ plan: '', unknown: ['no file'] }), { text: 'no file', mark: 'warn' })
  assert.equal(told({ plan: '' }).mark, null)
  assert.equal(text({ tried: [2, 3], predicted: null }), '2 GPUs · trying ulysses=2, 2 of 3')
  assert.deepEqual(told({ missing: [{ model: 'a', folder: 'checkpoints' }] }), {
    text: 'Missing in models/checkpoints: a',
    mark: 'warn'
  })
})
