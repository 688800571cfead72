import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import test from 'node:test'

import { describeWeights } from '../../web/panel/weights.mjs'
import { findText } from '../../web/words.mjs'

const GIB = 2 ** 30
const en = JSON.parse(readFileSync(new URL('../../locales/en/main.json', import.meta.url))).paralleldit
const t = (path, values) => findText([en], path, values)
const SHARED = {
  kind: 'shared',
  blocks: 17,
  of: 57,
  kept: 19.5 * GIB,
  whole: 22.2 * GIB,
  fetched: 3.6 * GIB,
  seconds: 0.32,
  link: 12e9
}
const told = (weights, usual) => describeWeights({ status: { weights }, runs: usual ? [{ usual }] : [] }, t)

test('whole weights are not mentioned, nor those of a group that reports nothing', () => {
  assert.deepEqual(told({ ...SHARED, kind: 'whole', blocks: 0, fetched: 0 }), [])
  assert.deepEqual(told(undefined), [])
  assert.deepEqual(told(null), [])
})

test('fetched weights show their blocks, what a rank keeps, and what a forward costs on the link', () => {
  assert.deepEqual(told(SHARED), [
    'Shared weights: 17 of 57 blocks',
    'Each rank keeps 19.5 GiB of 22.2 GiB',
    'A forward fetches 3.6 GiB: 0.32 s at 12.0 GB/s (measured)'
  ])
  const [, stay] = told({ ...SHARED, working: 1.5 * GIB })
  assert.equal(stay, 'Each rank keeps 19.5 GiB of 22.2 GiB, and needs 21.0 GiB with a forward (estimate)')
  const [where, , cost] = told({ ...SHARED, kind: 'host', link: 21.3e9, seconds: 0.0181 })
  assert.equal(where, 'Weights in RAM: 17 of 57 blocks')
  assert.equal(cost, 'A forward fetches 3.6 GiB: 18 ms at 21.3 GB/s (measured)')
})

test('memory that could not be pinned is told', () => {
  const host = { ...SHARED, kind: 'host' }
  assert.equal(told({ ...host, unpinned: 0 }).length, 3)
  const [, , , unpinned] = told({ ...host, unpinned: 3 * GIB })
  assert.match(unpinned, /^The system does not let 3\.0 GiB of RAM be pinned, so weights arrive more slowly\./)
})

test('a link that is busy for most of a step is called the bottleneck', () => {
  assert.equal(told(SHARED, 1.45).length, 3)
  assert.equal(told(SHARED, 0.36)[3], 'The link is the bottleneck: weights use it for 89% of a step.')
  assert.equal(told(SHARED, 0.3)[3], 'The link is the bottleneck: weights use it for 100% of a step.')
})
