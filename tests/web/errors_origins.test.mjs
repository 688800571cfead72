import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Origins } from '../../web/errors/origins.mjs'

const first = { path: 'workflows/first.json' }
const second = { path: 'workflows/second.json' }
const open = { activeWorkflow: second, openWorkflows: [first, second] }
const queued = (id) => Promise.resolve({ prompt_id: id })

test('a prompt is of the workflow that was open when it was sent, and of none that is closed', async () => {
  const origins = new Origins()
  await origins.sent(first, queued('a'))
  assert.equal(await origins.of('a', open), first)
  assert.equal(await origins.of('a', { activeWorkflow: second, openWorkflows: [second] }), null)
})

test('an error that comes before the answer with its prompt waits for it', async () => {
  const origins = new Origins()
  let answer
  origins.sent(first, new Promise((resolve) => (answer = resolve)))
  const found = origins.of('a', open)
  answer({ prompt_id: 'a' })
  assert.equal(await found, first)
})

test('what was sent from elsewhere counts as the active one, also after a prompt was refused', async () => {
  const origins = new Origins()
  const refused = origins.sent(first, Promise.reject(new Error('refused')))
  await assert.rejects(refused, /refused/)
  assert.equal(await origins.of('b', open), second)
  await origins.sent(first, queued('a'))
  await origins.ended('a')
  assert.equal(await origins.of('a', open), second)
})

test('an end that comes before the answer leaves nothing behind, and one that never comes not for ever', async () => {
  const origins = new Origins()
  const ended = [origins.sent(first, queued('a')), origins.ended('a')]
  await Promise.all(ended)
  assert.deepEqual(origins.toJSON(), {})
  for (let id = 0; id < 1000; id++) origins.sent(first, queued(String(id)))
  await origins.answered()
  assert.equal(Object.keys(origins.toJSON()).length, 200)
  assert.ok('999' in origins.toJSON())
})

test('a reload keeps the path, as it is by then, of the workflow of each prompt that has not ended', async () => {
  const before = new Origins()
  const renamed = { path: 'workflows/Unsaved Workflow.json' }
  await before.sent(renamed, queued('a'))
  await before.sent(second, queued('b'))
  before.ended('b')
  renamed.path = first.path
  const kept = JSON.parse(JSON.stringify(before))
  assert.deepEqual(kept, { a: first.path })
  const after = new Origins(kept)
  await after.sent(second, queued('c'))
  assert.equal(await after.of('a', open), first)
  assert.equal(await after.of('a', { activeWorkflow: second, openWorkflows: [second] }), null)
  assert.deepEqual(JSON.parse(JSON.stringify(after)), { a: first.path, c: second.path })
})
