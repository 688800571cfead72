import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'

import { classifyError, describeError, formatReport, KINDS, splitFields } from '../../web/errors/message.mjs'
import { findNode, getRectangle, placeCard } from '../../web/errors/place.mjs'

const PACK = 'ComfyUI-ParallelDiT'
const OURS = `/srv/ComfyUI/custom_nodes/${PACK}`
const frame = (file) => `  File "${file}", line 7, in forward\n    raise ValueError(\n`
const failed = (type, message = '', last = `${OURS}/nodes/x.py`, node = 'KSampler') => ({
  exception_type: type,
  exception_message: message,
  node_type: node,
  traceback: [frame('/srv/ComfyUI/execution.py'), frame(last)]
})

test('an error of the pack is recognised by its class', () => {
  for (const [name, kind] of Object.entries(KINDS)) {
    assert.equal(classifyError(failed(name, '', '/srv/ComfyUI/comfy/sd.py'), PACK), kind)
  }
  assert.equal(KINDS['paralleldit.WorkerGroupError'], 'group')
})

test('every kind has a title in both languages', () => {
  for (const language of ['en', 'zh']) {
    const file = new URL(`../../locales/${language}/main.json`, import.meta.url)
    const { titles } = JSON.parse(readFileSync(file, 'utf8')).paralleldit.errors
    for (const kind of [...Object.values(KINDS), 'unforeseen']) assert.ok(titles[kind], `${language}: ${kind}`)
  }
})

test("an unknown error in the pack's code is unforeseen, also at a stock node; another pack's error is not shown", () => {
  assert.equal(classifyError(failed('ValueError'), PACK), 'unforeseen')
  assert.equal(
    classifyError(failed('ValueError', '', `C:\\ComfyUI\\custom_nodes\\${PACK}\\nodes\\x.py`), PACK),
    'unforeseen'
  )
  assert.equal(classifyError(failed('ValueError', '', '/srv/ComfyUI/comfy/sd.py'), PACK), null)
  assert.equal(classifyError(failed('other.worker.errors.Strange', '', '/srv/ComfyUI/comfy/sd.py'), PACK), null)
})

test('an unforeseen error shows its class, and its traceback as details', () => {
  const event = failed('torch.TorchError', 'no\n', '/usr/lib/torch.py', 'ParallelDiT_Sampler')
  assert.equal(classifyError(event, PACK), 'unforeseen')
  const { cause, advice, details } = describeError(event, 'unforeseen')
  assert.deepEqual([cause, advice], ['TorchError: no', ''])
  assert.match(details, /execution\.py[\s\S]*torch\.py/)
  assert.equal(classifyError(failed('KeyError'), PACK), 'unforeseen')
})

test('paragraphs are the cause, what to do, and the details', () => {
  const log = 'The last lines of rank-1.log:\nrank 1 began\n\n\nDetails:\nmore'
  const text = `It ended.\nRank 1 was killed.\n\nQueue it again.\nOr not.\n\nDetails:\n${log}\n`
  assert.deepEqual(describeError(failed('paralleldit.WorkerGroupError', text), 'group'), {
    cause: 'It ended.\nRank 1 was killed.',
    advice: 'Queue it again.\nOr not.',
    details: log
  })
  assert.deepEqual(splitFields('It ended.\n\nDetails:\nlog'), { cause: 'It ended.', advice: '', details: 'log' })
})

test('a sentence is never split', () => {
  for (const text of ['cfg=3 does not fit; use cfg=2.', 'It runs away. Remove it.', 'scale 1.5 is none of 0.5', '']) {
    assert.deepEqual(splitFields(text), { cause: text, advice: '', details: '' })
  }
})

test('a report has the whole error', () => {
  assert.equal(formatReport('A title', { cause: 'Why.', advice: '', details: 'log' }), 'A title\n\nWhy.\n\nlog')
})

const graph = (nodes) => ({ getNodeById: (id) => nodes[id] ?? null })

test('an error in a subgraph is shown at the node that is on the screen', () => {
  const inner = graph({ 5: { id: 5 } })
  const outer = graph({ 2: { id: 2, subgraph: inner }, 3: { id: 3 } })
  assert.equal(findNode(outer, outer, '3').id, 3)
  assert.equal(findNode(outer, outer, '2:5').id, 2)
  assert.equal(findNode(inner, outer, '2:5').id, 5)
  assert.equal(findNode(inner, outer, '3'), null)
  assert.equal(findNode(outer, outer, '9'), null)
})

test('a rectangle follows pan, zoom and collapsing', () => {
  const node = { pos: [10, 60], size: [200, 100], flags: {}, _collapsed_width: 80 }
  const canvas = { scale: 2, offset: [5, 0] }
  assert.deepEqual(getRectangle(node, canvas, 30), { x: 30, y: 60, width: 400, height: 260 })
  node.flags.collapsed = true
  assert.deepEqual(getRectangle(node, canvas, 30), { x: 30, y: 60, width: 160, height: 60 })
})

const VIEW = { x: 60, y: 0, width: 1000, height: 800 }
const CARD = { width: 400, height: 200 }
const node = (x, y) => ({ x, y, width: 200, height: 100 })

test('the card is next to the node, on the first side with room', () => {
  assert.deepEqual(placeCard(node(100, 100), CARD, CARD, VIEW), { x: 100, y: 210 })
  assert.deepEqual(placeCard(node(100, 600), CARD, CARD, VIEW), { x: 310, y: 590 })
  assert.deepEqual(placeCard(node(700, 550), CARD, CARD, VIEW), { x: 290, y: 550 })
})

test('the card is whole within the view, wherever the node is', () => {
  for (const x of [-5000, 0, 300, 900, 5000]) {
    for (const y of [-5000, 0, 300, 700, 5000]) {
      const corner = placeCard(node(x, y), CARD, CARD, VIEW)
      assert.ok(corner.x >= 60 && corner.x + 400 <= 1060, `${x}, ${y}: ${corner.x}`)
      assert.ok(corner.y >= 0 && corner.y + 200 <= 800, `${x}, ${y}: ${corner.y}`)
    }
  }
  assert.deepEqual(placeCard(null, CARD, CARD, VIEW), { x: 70, y: 590 })
})

test('unfolding the details leaves the card on its side of the node', () => {
  const unfolded = { width: 400, height: 500 }
  assert.deepEqual(placeCard(node(100, 300), CARD, CARD, VIEW), { x: 100, y: 410 })
  assert.deepEqual(placeCard(node(100, 300), unfolded, CARD, VIEW), { x: 100, y: 290 })
})
