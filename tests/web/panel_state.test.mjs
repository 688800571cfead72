import assert from 'node:assert/strict'
import test from 'node:test'

import {
  applyAnswer,
  applyEvent,
  applyLog,
  createModel,
  getBadge,
  getState,
  getStep,
  hasLogs,
  isDismissible,
  isLogOld,
  listActions,
  listRanks,
  openLog,
  RUNS
} from '../../web/panel/state.mjs'

const READY = {
  state: 'ready',
  deaths: 0,
  last_death: null,
  operation: null,
  step: null,
  device: 'cpu',
  pids: [11, 12],
  memory: [
    { resident: 5, accelerator: 0, total: 9 },
    { resident: 6, accelerator: 0, total: 9 }
  ],
  beats: [0.1, 4.2],
  model: 'FluxTransformer2DModel'
}
const STOPPED = { state: 'stopped', deaths: 0, last_death: null }
const run = (id, state = 'done', made = 3) => ({ id, state, made, total: null, operation: 'call', steps: [] })
const page = (status = READY, runs = []) =>
  applyAnswer(createModel(), { groups: [{ group: 1, status, runs }], device: 'cpu', devices: 2 })
const event = (changes) => ({ group: 1, status: READY, runs: [], ...changes })
const only = (model) => model.groups[0]

test('a page without groups shows the first one, stopped', () => {
  const model = applyAnswer(createModel(), { groups: [], device: 'cuda', devices: 4 })
  assert.deepEqual([model.groups.length, only(model).number, getState(only(model))], [1, 1, 'stopped'])
  assert.equal(hasLogs(only(model)), false)
})

test('one event brings the run that ended and the run that began', () => {
  const before = applyEvent(createModel(), event({ runs: [run(1, 'running')] }))
  const after = applyEvent(before, event({ runs: [run(2, 'running'), run(1)] }))
  assert.deepEqual(
    after.groups[0].runs.map(({ id, state }) => [id, state]),
    [
      [2, 'running'],
      [1, 'done']
    ]
  )
})

test('events follow the answer: status, runs newest first, ten of them', () => {
  let model = page(STOPPED)
  for (let id = 1; id <= 12; id++) model = applyEvent(model, event({ runs: [run(id)] }))
  assert.equal(only(model).runs.length, RUNS)
  assert.deepEqual([only(model).runs[0].id, only(model).runs.at(-1).id], [12, 3])
  assert.equal(getState(only(model)), 'ready')
})

test('an event replaces the state of a run, and an event without a run leaves it', () => {
  const before = page(READY, [run(2, 'running', 1), run(1)])
  const after = applyEvent(applyEvent(before, event({ runs: [run(2, 'running', 5)] })), event())
  assert.deepEqual(
    only(after).runs.map(({ id, made }) => [id, made]),
    [
      [2, 5],
      [1, 3]
    ]
  )
  assert.equal(only(before).runs[0].made, 1)
})

test('another group appears with its first event, in the order of numbers', () => {
  const model = applyEvent(applyEvent(createModel(), event({ group: 3 })), event({ group: 2 }))
  assert.deepEqual(
    model.groups.map(({ number }) => number),
    [2, 3]
  )
})

test('between the forwards of one run the group is busy, and the run gives the step', () => {
  const group = only(page(READY, [run(1, 'running', 7)]))
  assert.equal(getState(group), 'busy')
  assert.deepEqual(getStep(group), { at: 7, of: null })
  const told = { ...run(1, 'running', 7), at: 3, total: 20 }
  assert.deepEqual(getStep(only(page(READY, [told]))), { at: 3, of: 20 })
  assert.equal(getState(only(page(READY, [run(1)]))), 'ready')
  assert.equal(getState(only(page({ ...READY, state: 'failed' }, [run(1, 'running')]))), 'failed')
})

test('a cancelled job does not count as running, until the next one runs', () => {
  const given = { ...READY, state: 'busy', operation: 'call', given_up: true }
  const group = only(page(given, [run(1, 'cancelled')]))
  assert.equal(getState(group), 'cancelling')
  assert.deepEqual(listActions(group), { start: false, stop: true, restart: true, park: true })
  assert.equal(getState(only(page(given, [run(2, 'running'), run(1, 'cancelled')]))), 'busy')
  assert.equal(getState(only(page({ ...given, state: 'ready' }, [run(1, 'cancelled')]))), 'ready')
})

test("the reason of a group's end cannot be dismissed while the group is down", () => {
  assert.ok(isDismissible(only(page())))
  for (const state of ['failed', 'restarting']) assert.ok(!isDismissible(only(page({ ...READY, state }))))
})

test("the step of a sampler call comes from the group's status", () => {
  assert.deepEqual(getStep(only(page({ ...READY, state: 'busy', step: [7, 20] }))), { at: 7, of: 20 })
  assert.equal(getStep(only(page({ ...READY, state: 'busy', operation: 'load' }))), null)
})

test('ranks show the memory of their own device, and whether they are silent', () => {
  const [first, second] = listRanks(only(page()))
  assert.deepEqual([first.pid, first.used, first.total, first.silent], [11, 5, 9, 0])
  assert.equal(second.silent, 4.2)
  const memory = [{ resident: 5, accelerator: 7, total: 8, weights: 4, resident_weights: 3 }]
  const [gpu] = listRanks(only(page({ ...READY, device: 'cuda', pids: [1], memory, beats: [0] })))
  assert.deepEqual([gpu.used, gpu.weights, gpu.placed], [7, 4, 3])
  const named = (indexes) => {
    const devices = indexes.map((index) => ({ index, name: 'RTX 4090' }))
    return listRanks(only(page({ ...READY, pids: indexes, memory: [], devices }))).map(({ isSame }) => isSame)
  }
  assert.deepEqual(named([1, 0]), [false, false])
  assert.deepEqual(named([0, 1, 0, 1]), [true, true, true, true], 'of two machines')
  assert.deepEqual(named([null, null]), [true, true], 'a CPU has no number')
  assert.deepEqual(listRanks(only(page(STOPPED))), [])
})

test('each state allows the buttons that are of use', () => {
  const possible = (status) => {
    const actions = listActions(only(page({ ...READY, ...status })))
    return Object.keys(actions)
      .filter((name) => actions[name])
      .join(' ')
  }
  assert.equal(possible({ state: 'stopped' }), 'start')
  assert.equal(possible({ state: 'starting' }), 'stop')
  assert.equal(possible({ state: 'ready' }), 'stop restart park')
  assert.equal(possible({ state: 'ready', model: undefined }), 'stop restart')
  assert.equal(possible({ state: 'busy' }), 'stop restart park')
  assert.equal(possible({ state: 'parked' }), 'stop restart')
  assert.equal(possible({ state: 'restarting' }), 'stop restart')
  assert.equal(possible({ state: 'failed' }), 'restart')
})

test('a log is read again once the group has changed, and keeps its lines until then', () => {
  const model = page()
  assert.ok(isLogOld(model, 1, 1))
  const reading = openLog(model, 1, 1)
  assert.ok(!isLogOld(reading, 1, 1) && only(reading).logs[1].isReading)
  const read = applyLog(reading, 1, 1, 'a\nb\n')
  assert.deepEqual(only(read).logs[1].lines, ['a', 'b'])
  assert.ok(!isLogOld(read, 1, 1) && isLogOld(read, 1, 0))
  const later = applyEvent(read, event({ status: { ...READY } }))
  assert.ok(isLogOld(later, 1, 1))
  assert.deepEqual(only(applyLog(openLog(later, 1, 1), 1, 1, null)).logs[1].lines, ['a', 'b'])
  const changedMeanwhile = applyLog(applyEvent(reading, event({ status: { ...READY } })), 1, 1, 'a')
  assert.ok(isLogOld(changedMeanwhile, 1, 1))
})

test('the badge shows a failed group before a busy one', () => {
  const failed = event({ group: 2, status: { ...STOPPED, state: 'failed' } })
  assert.equal(getBadge(page()), '')
  assert.equal(getBadge(page({ ...READY, state: 'busy' })), '•')
  assert.equal(getBadge(applyEvent(page({ ...READY, state: 'busy' }), failed)), '!')
})
