import assert from 'node:assert/strict'
import test from 'node:test'

import { Comparison } from '../../web/compare/comparison.js'
import { candidates, compared, loadersOf, taken, under } from '../../web/compare/prompts.js'
import { Queue } from '../../web/compare/queue.js'

const LOADER = 'ParallelDiT_LoadDiffusionModel'
const PROMPT = {
  1: { class_type: LOADER, inputs: { model_name: 'a', plan: ['9', 0] } },
  2: { class_type: LOADER, inputs: { model_name: 'b', group: 2 } },
  3: { class_type: 'KSampler', inputs: { model: ['1', 0], seed: 5 } }
}
const run = (id, step, state = 'done') => ({ id, state, plan: `plan ${id}`, seconds: 10 * step, steps: [[step, 0]] })

test('the loaders of a group get the plan, and nothing else of the prompt changes', () => {
  assert.deepEqual(loadersOf(PROMPT, [LOADER], 1), ['1'])
  assert.deepEqual(loadersOf(PROMPT, [LOADER], 2), ['2'])
  const changed = under(PROMPT, ['1'], { mode: 'manual', ulysses: 2 }, 'now')
  const [id, slot] = changed[1].inputs.plan
  assert.equal(slot, 0)
  assert.equal(changed[id].class_type, 'ParallelDiT_Plan')
  assert.equal(changed[id].inputs.ulysses, 2)
  assert.deepEqual([changed[2], changed[3]], [PROMPT[2], PROMPT[3]])
  assert.deepEqual(PROMPT[1].inputs.plan, ['9', 0])
  assert.notDeepEqual(changed, under(PROMPT, ['1'], { mode: 'manual', ulysses: 2 }, 'later'), 'it runs again')
})

test('compared are the plans predicted to be the fastest that fit, or auto, and one device', () => {
  const best = [
    { plan: 'ulysses=2', values: { ulysses: 2 }, fits: true },
    { plan: 'dp=2', values: { dp: 2 }, fits: false }
  ]
  const found = candidates({ predicted: { best } })
  assert.deepEqual(
    found.map(({ values, isAlone }) => [values, isAlone]),
    [
      [{ ulysses: 2, mode: 'manual' }, false],
      [{ mode: 'manual' }, true]
    ]
  )
  for (const answer of [null, { predicted: null }]) assert.equal(candidates(answer)[0].values.mode, 'auto')
})

test('what the runs of a prompt took, and how many times as fast as one device', () => {
  assert.deepEqual(taken([run(1, 2), run(2, 4)]), { isDone: true, plan: 'plan 1', seconds: 60, step: 3 })
  assert.equal(taken([]).isDone, false)
  assert.equal(taken([run(1, 2, 'failed')]).isDone, false)
  const rows = compared([
    { isAlone: false, taken: taken([run(1, 0.5)]) },
    { isAlone: true, taken: taken([run(2, 0.9)]) }
  ])
  assert.deepEqual(
    rows.map(({ times }) => times),
    [1.8, 1]
  )
  assert.equal(compared([rows[0], { ...rows[1], taken: null }])[0].times, null)
})

/** A comparison whose prompts end as given, in turn; each that succeeds leaves a run. */
function comparing(ends) {
  const runs = [run(1, 5)]
  const queued = []
  const queue = {
    async run({ output }) {
      queued.push(output)
      const end = ends.shift()
      if (end === 'success') runs.unshift(run(runs.length + 1, 1))
      return end
    }
  }
  const host = {
    prompt: async () => ({ output: PROMPT, workflow: {} }),
    answer: async () => ({ predicted: { best: [{ plan: 'dp=2', values: { dp: 2 }, fits: true }] } }),
    runs: async () => [...runs]
  }
  return { comparison: new Comparison(queue, host, [LOADER], () => {}), queued }
}

test('each plan is run once, one after the other; one that fails leaves the others', async () => {
  const { comparison, queued } = comparing(['error', 'success'])
  await comparison.run(1, '')
  assert.deepEqual(
    comparison.rows.map(({ state }) => state),
    ['failed', 'done']
  )
  assert.equal(queued.length, 2)
  assert.equal(comparison.isRunning, false)
})

test('one that is interrupted ends the comparison', async () => {
  const { comparison, queued } = comparing(['interrupted', 'success'])
  await comparison.run(1, '')
  assert.deepEqual(
    comparison.rows.map(({ state }) => state),
    ['leftOut', 'leftOut']
  )
  assert.equal(queued.length, 1)
})

test('a workflow without a loader of the group says so', async () => {
  const { comparison, queued } = comparing([])
  await comparison.run(3, 'no loader')
  assert.deepEqual([comparison.problem, queued.length], ['no loader', 0])
})

/** An editor's api with a queue of one prompt. answers: by path. */
function server(answers) {
  const api = new EventTarget()
  api.queuePrompt = async () => ({ prompt_id: 'p' })
  api.fetchApi = async (path) => ({ json: async () => answers[path]() })
  api.tell = (name, detail) => api.dispatchEvent(Object.assign(new Event(name), { detail }))
  return api
}

test('a prompt is waited for until its end is told', async () => {
  const api = server({ '/queue': () => ({ queue_running: [[0, 'p']], queue_pending: [] }) })
  const end = new Queue(api).run({})
  await new Promise(setImmediate)
  api.tell('execution_success', { prompt_id: 'another' })
  api.tell('execution_error', { prompt_id: 'p' })
  assert.equal(await end, 'error')
})

test('one that is taken from the queue is not waited for; of one that ended unheard the history tells', async () => {
  const queues = [[[0, 'p']], []]
  const gone = {
    '/queue': () => ({ queue_running: [], queue_pending: queues.shift() }),
    '/history/p': () => ({})
  }
  const api = server(gone)
  const end = new Queue(api).run({})
  await new Promise(setImmediate)
  api.tell('status', {})
  assert.equal(await end, 'gone')
  const messages = [
    ['execution_start', {}],
    ['execution_success', {}]
  ]
  const ended = {
    '/queue': () => ({ queue_running: [], queue_pending: [] }),
    '/history/p': () => ({ p: { status: { messages } } })
  }
  assert.equal(await new Queue(server(ended)).run({}), 'success')
})
