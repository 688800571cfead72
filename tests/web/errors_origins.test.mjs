import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Origins } from '../../web/errors/origins.mjs'

const first = { path: 'workflows/first.json' }
const second = { path: 'workflows/second.json' }
const open = { activeWorkflow: second, openWorkflows: [first, second] }
const queued = (id) => Promise.resolve({ prompt_id: id })

test('a prompt belongs to the workflow that was open when it was sent, unless that is closed', async () => {
  const origins = new Origins()
  await origins.noteSent(first, queued('a'))
  assert.equal(await origins.findWorkflow('a', open), first)
  assert.equal(await origins.findWorkflow('a', { activeWorkflow: second, openWorkflows: [second] }), null)
})

test("an error that comes before the answer with its prompt's id waits for the answer", async () => {
  const origins = new Origins()
  let answer
  origins.noteSent(first, new Promise((resolve) => (answer = resolve)))
  const found = origins.findWorkflow('a', open)
  answer({ prompt_id: 'a' })
  assert.equal(await found, first)
})

test("a prompt from elsewhere counts as the active workflow's, also after a prompt was refused", async () => {
  const origins = new Origins()
  const refused = origins.noteSent(first, Promise.reject(new Error('refused')))
  await assert.rejects(refused, /refused/)
  assert.equal(await origins.findWorkflow('b', open), second)
  await origins.noteSent(first, queued('a'))
  await origins.forget('a')
  assert.equal(await origins.findWorkflow('a', open), second)
})

test('a prompt that ends before its answer is forgotten, and one whose end is never heard is, too, in time', async () => {
  const origins = new Origins()
  const ended = [origins.noteSent(first, queued('a')), origins.forget('a')]
  await Promise.all(ended)
  assert.deepEqual(origins.toJSON(), {})
  for (let id = 0; id < 1000; id++) origins.noteSent(first, queued(String(id)))
  await origins.waitForAnswers()
  assert.equal(Object.keys(origins.toJSON()).length, 200)
  assert.ok('999' in origins.toJSON())
})

test('a reload keeps the present path of the workflow of each unfinished prompt', async () => {
  const before = new Origins()
  const renamed = { path: 'workflows/Unsaved Workflow.json' }
  await before.noteSent(renamed, queued('a'))
  await before.noteSent(second, queued('b'))
  before.forget('b')
  renamed.path = first.path
  const kept = JSON.parse(JSON.stringify(before))
  assert.deepEqual(kept, { a: first.path })
  const after = new Origins(kept)
  await after.noteSent(second, queued('c'))
  assert.equal(await after.findWorkflow('a', open), first)
  assert.equal(await after.findWorkflow('a', { activeWorkflow: second, openWorkflows: [second] }), null)
  assert.deepEqual(JSON.parse(JSON.stringify(after)), { a: first.path, c: second.path })
})
