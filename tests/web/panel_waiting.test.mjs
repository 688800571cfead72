import assert from 'node:assert/strict'
import test from 'node:test'

import { emptyNotice, updateWaiting } from '../../web/panel/waiting.mjs'

const t = (path, values = {}) => [path.replace('waiting.', ''), ...Object.values(values)].join(' ')
const run = (made = 0) => ({ id: 1, state: 'running', node: '3', made })
const group = (status, made = 0) => ({ status: { state: 'busy', ...status }, runs: [run(made)] })
const loading = (...read) => group({ operation: 'load', memory: read.map((share) => ({ read: share })) })

/** The texts after each of these events, with their times. */
function follow(...events) {
  let said = emptyNotice()
  return events.map(([now, event]) => {
    said = updateWaiting(said, event, now, t)
    return said.text
  })
}

test('a node shows what its workers do, and after the first step how long it took', () => {
  const texts = follow(
    [0, group({ state: 'starting', starting: 3.2 })],
    [9, group({ state: 'starting', starting: 12.1 })],
    [10, group({ state: 'ready' })],
    [10, loading(undefined, undefined)],
    [11, loading(40, 20)],
    [13, loading(99, 60)],
    [14, group({ operation: 'call' }, 1)],
    [15, group({ operation: 'call' }, 2)]
  )
  assert.deepEqual(texts, [
    'starting 4 s',
    'starting 13 s',
    'starting 13 s',
    'loading',
    'reading 20',
    'reading 60',
    'started 12.1 s\nread 3.00 s',
    ''
  ])
})

test('a start or a load that only one event showed leaves no text', () => {
  const starting = group({ state: 'starting', starting: 0 })
  assert.deepEqual(follow([0, starting], [0, loading(62)], [2, group({ operation: 'call' }, 1)]), [
    'starting 0 s',
    'reading 62',
    'started 0 ms\nread 2.00 s'
  ])
})

test('a run that is over with the next event still shows what it waited for', () => {
  const over = (status, state) => ({ status, runs: [{ ...run(3), state }] })
  const started = [0, group({ state: 'starting', starting: 11 })]
  const texts = follow(started, [1, over({ state: 'ready' }, 'done')], [2, over({ state: 'ready' }, 'done')])
  assert.deepEqual(texts.slice(1), ['started 11.0 s', ''])
  assert.equal(follow(started, [1, over({ state: 'starting', starting: 12 }, 'cancelled')])[1], '')
})

test('no text is shown if the workers are ready, or if no node waits', () => {
  assert.deepEqual(follow([0, group({ operation: 'call' }, 1)], [1, group({ operation: 'call' }, 2)]), ['', ''])
  const idle = { status: { state: 'starting', starting: 5 }, runs: [{ ...run(), state: 'done' }] }
  assert.equal(updateWaiting(emptyNotice(), idle, 0, t).text, '')
  assert.equal(updateWaiting(emptyNotice(), { status: { state: 'starting', starting: 5 }, runs: [] }, 0, t).text, '')
})

test("one node's wait is not shown at another", () => {
  const before = updateWaiting(emptyNotice(), group({ state: 'starting', starting: 8 }), 0, t)
  const other = { ...group({ operation: 'call' }, 1), runs: [{ ...run(1), node: '7' }] }
  assert.deepEqual(updateWaiting(before, other, 1, t), { ...emptyNotice(), node: '7' })
})
