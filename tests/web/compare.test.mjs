import assert from 'node:assert/strict'
import test from 'node:test'

import { Comparison } from '../../web/compare/comparison.mjs'
import {
  addSpeedups,
  applyPlan,
  findNodes,
  listCandidates,
  sortRows,
  summarizeRuns
} from '../../web/compare/prompts.mjs'
import { Queue } from '../../web/compare/queue.mjs'

const NODE = 'ParallelDiT_Parallelize'
const PROMPT = {
  1: { class_type: NODE, inputs: { model: ['9', 0], mode: 'manual', ring: 4 } },
  2: { class_type: NODE, inputs: { model: ['9', 0], mode: 'auto', group: 2 } },
  3: { class_type: 'KSampler', inputs: { model: ['1', 0], seed: 5 } }
}
const ULYSSES = { ulysses: 2, speeds: [1, 0.5] }
const run = (began, step, state = 'done') => ({
  id: began,
  state,
  began,
  plans: [{ ...ULYSSES, dp: began }],
  seconds: 10 * step + 3,
  startup: 3,
  usual: step
})

test('the nodes of a group get the plan in place of their own, and nothing else of the prompt changes', () => {
  assert.deepEqual(findNodes(PROMPT, 1), ['1'])
  assert.deepEqual(findNodes(PROMPT, 2), ['2'])
  const changed = applyPlan(PROMPT, ['1'], { mode: 'manual', ulysses: 2 }, 'now')
  const { model, mode, ulysses, ring } = changed[1].inputs
  assert.deepEqual([model, mode, ulysses, ring], [['9', 0], 'manual', 2, undefined])
  assert.deepEqual([changed[2], changed[3]], [PROMPT[2], PROMPT[3]])
  assert.equal(PROMPT[1].inputs.ring, 4)
  assert.notDeepEqual(changed, applyPlan(PROMPT, ['1'], { mode: 'manual', ulysses: 2 }, 'later'), 'it runs again')
})

test('a comparison runs the fastest predicted plans that fit, or auto, and one device', () => {
  const best = [
    { values: ULYSSES, fits: true },
    { values: { dp: 2, speeds: [] }, fits: false }
  ]
  const found = listCandidates({ predicted: { best } }, { is_lossy: false, values: { ring: 4 } })
  assert.deepEqual(
    found.map(({ values, isAlone }) => [values, isAlone]),
    [
      [{ mode: 'manual' }, true],
      [{ ulysses: 2, speeds: '1, 0.5', mode: 'manual' }, false]
    ]
  )
  for (const answer of [null, { predicted: null }]) assert.equal(listCandidates(answer, null)[1].values.mode, 'auto')
})

test('the fastest predicted plan runs last, so the ranks keep it', () => {
  const best = [1, 2, 3].map((dp) => ({ values: { dp }, fits: true }))
  const found = listCandidates({ predicted: { best } }, null)
  assert.deepEqual(
    found.map(({ values }) => values.dp),
    [undefined, 3, 2, 1]
  )
})

const LOSSY = { is_lossy: true, values: { ulysses: 2, exchange_dtype: 'int4', speeds: [1, 0.5] } }

test("so does the node's own plan that changes the image", () => {
  const [alone, found] = listCandidates(null, LOSSY)
  assert.deepEqual(
    [found.values, found.isLossy, alone.isAlone],
    [{ ...LOSSY.values, speeds: '1, 0.5', mode: 'manual' }, true, true]
  )
  assert.deepEqual(found.plans, [LOSSY.values])
})

test("a prompt's runs are summed up, with the speedup over one device", () => {
  assert.deepEqual(summarizeRuns([run(1, 2), run(2, 4)]), {
    isDone: true,
    last: 1,
    plans: [{ ...ULYSSES, dp: 1 }],
    startup: 6,
    seconds: 60,
    step: 2
  })
  assert.equal(summarizeRuns([]).isDone, false)
  assert.equal(summarizeRuns([run(1, 2, 'failed')]).isDone, false)
  const rows = addSpeedups([
    { isAlone: false, result: summarizeRuns([run(1, 0.5)]) },
    { isAlone: true, result: summarizeRuns([run(2, 0.9)]) }
  ])
  assert.deepEqual(
    rows.map(({ times }) => times),
    [1.8, 1]
  )
  assert.equal(addSpeedups([rows[0], { ...rows[1], result: null }])[0].times, null)
})

test('rows are sorted by their step, and the fastest exact one is marked', () => {
  const row = (name, step, values) => ({ name, state: 'done', result: { step }, ...values })
  const failed = { name: 'failed', state: 'failed', result: null }
  const rows = [row('alone', 3), failed, row('lossy', 1, { isLossy: true }), row('ring', 5), row('ulysses', 2)]
  const sorted = sortRows(rows)
  assert.deepEqual(
    sorted.map(({ name }) => name),
    ['lossy', 'ulysses', 'alone', 'ring', 'failed']
  )
  assert.deepEqual(
    sorted.filter(({ isFastest }) => isFastest).map(({ name }) => name),
    ['ulysses']
  )
})

/** A comparison whose prompts end as given, in turn; each that succeeds leaves a run, and another prompt one before. */
function comparing(ends, state = 'ready') {
  const runs = [run(1, 5)]
  const queued = []
  const queue = {
    async run({ output }) {
      queued.push(output)
      const end = ends.shift()
      const from = 10 * queued.length
      runs.unshift(run(from - 1, 7, 'running'))
      if (end === 'success') runs.unshift(run(from + 0.5, 1))
      return { end, from: 1000 * from, to: 1000 * (from + 1) }
    }
  }
  const asked = []
  const host = {
    prompt: async () => ({ output: PROMPT, workflow: {} }),
    about: () => ({ workflow: 'flux', picture: { width: 64, height: 64 } }),
    answers: async (node) => {
      asked.push(node)
      return [{ predicted: { best: [{ values: { dp: 2, speeds: [] }, fits: true }] } }, null]
    },
    runs: async () => [...runs],
    error: async (...ids) => ids,
    state: async () => state,
    restore: async (...restored) => asked.push(...restored)
  }
  return { comparison: new Comparison(queue, host, () => {}), queued, asked }
}

test('each plan runs once, one after the other, also after one has failed', async () => {
  const { comparison, queued, asked } = comparing(['error', 'success'], 'parked')
  await comparison.run(1, '')
  assert.deepEqual(asked, ['1', 1, 'parked'], 'and the group is left as it was')
  assert.equal(comparison.rows[0].result.seconds, 10, 'of its own prompt alone')
  assert.deepEqual(
    comparison.rows.map(({ state }) => state),
    ['done', 'failed']
  )
  assert.equal(queued.length, 2)
  assert.equal(comparison.isRunning, false)
})

test("a lossy plan's run is compared with an exact one's", async () => {
  const { comparison } = comparing(['success', 'success', 'success'])
  const { answers } = comparison.host
  comparison.host.answers = async (node) => [(await answers(node))[0], LOSSY]
  await comparison.run(1, '')
  assert.deepEqual(comparison.rows.map(({ error }) => error).filter(Boolean), [[1, 20.5, 10.5]])
})

for (const end of ['interrupted', 'gone']) {
  test(`one that is ${end} ends the comparison`, async () => {
    const { comparison, queued } = comparing([end, 'success'])
    await comparison.run(1, '')
    assert.deepEqual(
      comparison.rows.map(({ state }) => state),
      ['leftOut', 'leftOut']
    )
    assert.equal(queued.length, 1)
  })
}

test('cancelling ends the prompt that runs, and leaves out the others', async () => {
  const { comparison, queued } = comparing(['success', 'success'])
  const { run: runOne } = comparison.queue
  comparison.queue.cancel = async () => {}
  comparison.queue.run = (prompt) => {
    comparison.cancel()
    return runOne(prompt)
  }
  await comparison.run(1, '')
  assert.equal(queued.length, 1)
  comparison.queue.run = runOne
  await comparison.run(1, '')
  assert.ok(queued.length > 1, 'the next comparison runs')
})

test('the comparison shows why the server refused a prompt', async () => {
  const { comparison } = comparing([])
  const error = Object.assign(new Error('Prompt execution failed'), { response: {}, toString: () => 'no such file' })
  comparison.queue.run = async () => {
    throw error
  }
  await comparison.run(1, '')
  assert.equal(comparison.problem, 'no such file')
})

test('a workflow without a node of the group says so', async () => {
  const { comparison, queued } = comparing([])
  await comparison.run(3, 'no node')
  assert.deepEqual([comparison.problem, queued.length], ['no node', 0])
})

/** An editor's api with a queue of one prompt. answers: by path. */
function server(answers) {
  const api = new EventTarget()
  api.queuePrompt = async () => ({ prompt_id: 'p' })
  api.fetchApi = async (path) => ({ json: async () => answers[path]() })
  api.tell = (name, detail) => api.dispatchEvent(Object.assign(new Event(name), { detail }))
  return api
}

const history = (...messages) => ({ p: { status: { messages } } })
const at = (timestamp) => ({ timestamp, prompt_id: 'p' })

test('the queue waits until a prompt has left it, and reads from the history how it ended', async () => {
  const queues = [
    [[[0, 'p']], []],
    [[], [[0, 'p']]],
    [[], []]
  ]
  const api = server({
    '/queue': () => {
      const [queue_running, queue_pending] = queues.shift()
      return { queue_running, queue_pending }
    },
    '/history/p': () => history(['execution_start', at(5)], ['execution_cached', at(6)], ['execution_error', at(9)])
  })
  const end = new Queue(api).run({})
  for (const event of ['status', 'reconnected']) {
    await new Promise(setImmediate)
    api.tell(event, {})
  }
  assert.deepEqual(await end, { end: 'error', from: 5, to: 9 })
})

test('the queue interrupts its prompt, or removes it', async () => {
  const asked = []
  const api = server({ '/history/p': () => ({}) })
  const queue = new Queue(api)
  api.fetchApi = async (path, { body } = {}) => {
    asked.push([path, body])
    return { json: async () => ({ queue_running: [], queue_pending: [] }) }
  }
  queue.readEnd = async () => ({ end: 'gone' })
  await queue.run({})
  await queue.cancel()
  assert.deepEqual(asked.slice(-2), [
    ['/queue', '{"delete":["p"]}'],
    ['/interrupt', '{"prompt_id":"p"}']
  ])
})

test('the queue does not wait for a prompt that somebody removed', async () => {
  const gone = { '/queue': () => ({ queue_running: [], queue_pending: [] }), '/history/p': () => ({}) }
  assert.equal((await new Queue(server(gone)).run({})).end, 'gone')
})
