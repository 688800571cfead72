import assert from 'node:assert/strict'
import test from 'node:test'

import { emptyNotice, updateWaiting } from '../../web/panel/waiting.mjs'

const t = (path, values = {}) => [path.replace('waiting.', ''), ...Object.values(values)].join(' ')
const translate = (sentence) => sentence && `said: ${sentence}`
const run = (made = 0) => ({ id: 1, state: 'running', node: '3', made, plans: [{ cfg: 2 }], usual: 0.027, reason: '' })
const RUNS = 'plan.ranks 2 · cfg=2'
const group = (status, made = 0) => ({ status: { state: 'busy', ...status }, runs: [run(made)] })
const loading = (...read) => group({ operation: 'load', memory: read.map((share) => ({ read: share })) })

/** The texts after each of these events, with their times. */
function follow(...events) {
  let said = emptyNotice()
  return events.map(([now, event]) => {
    said = updateWaiting(said, event, now, t, translate)
    return said.text
  })
}

test('a node shows what its workers do, and from the first step on their plan', () => {
  const texts = follow(
    [0, group({ state: 'starting', starting: 3.2 })],
    [9, group({ state: 'starting', starting: 12.1 })],
    [10, group({ state: 'ready' })],
    [10, loading(undefined, undefined)],
    [11, loading(undefined, undefined)],
    [12, loading(40, 20)],
    [13, loading(99, 60)],
    [14, group({ operation: 'call' }, 1)],
    [15, group({ operation: 'call' }, 2)]
  )
  assert.deepEqual(texts, [
    'starting 4 s',
    'starting 13 s',
    'starting 13 s',
    'starting 13 s',
    'loading',
    'reading 20',
    'reading 60',
    RUNS,
    RUNS
  ])
})

test('a load of less than a second is not told', () => {
  assert.deepEqual(follow([0, loading(62)], [0.9, loading(99)], [1, group({ operation: 'call' }, 1)]), ['', '', RUNS])
})

test('a run that is over shows its plan and a step, and what is special about it', () => {
  const over = (status, changes) => ({ status, runs: [{ ...run(3), state: 'done', ...changes }] })
  const started = [0, group({ state: 'starting', starting: 11 })]
  const ended = (changes) => follow(started, [1, over({ state: 'ready' }, changes)])[1]
  assert.equal(ended({}), `${RUNS} · plan.speed.step 27 ms`)
  assert.equal(ended({ plans: [{}] }), 'panel.planOneRank · plan.speed.step 27 ms')
  assert.equal(ended({ usual: null, reason: 'Tried.' }), `${RUNS}\nsaid: Tried.`)
  assert.equal(ended({ is_stock: true, plans: [], reason: 'Stock.' }), 'said: Stock.')
  assert.equal(ended({ state: 'cancelled' }), RUNS)
  assert.equal(follow(started, [1, over({ state: 'starting', starting: 12 }, { state: 'cancelled' })])[1], '')
})

test('no text is shown if no node waits', () => {
  const idle = { status: { state: 'starting', starting: 5 }, runs: [{ ...run(), state: 'done' }] }
  assert.equal(updateWaiting(emptyNotice(), idle, 0, t, translate).text, '')
  assert.equal(
    updateWaiting(emptyNotice(), { status: { state: 'starting', starting: 5 }, runs: [] }, 0, t, translate).text,
    ''
  )
})

test('a run whose group died does not wait for the one that starts', () => {
  const texts = follow([0, group({ operation: 'call' }, 2)], [1, group({ state: 'restarting', starting: 1 }, 2)])
  assert.deepEqual(texts, [RUNS, RUNS])
})

test("one node's wait is not shown at another", () => {
  const before = updateWaiting(emptyNotice(), group({ state: 'starting', starting: 8 }), 0, t, translate)
  const other = { ...group({ operation: 'call' }, 1), runs: [{ ...run(1), node: '7' }] }
  assert.deepEqual(updateWaiting(before, other, 1, t, translate), { ...emptyNotice(), node: '7', text: RUNS })
})
