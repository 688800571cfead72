import assert from 'node:assert/strict'
import { test } from 'node:test'

import { LOADER } from '../../web/plan/graph.mjs'
import { renewWorkflow } from '../../web/plan/old.mjs'

const inputs = () => ['model_name', 'dtype', 'loop_mode', 'plan', 'group'].map((name) => ({ name, link: null }))
const loader = (id) => ({ id, type: LOADER, inputs: inputs(), widgets_values: ['a.safetensors', 'auto', true, 3] })

test('a workflow saved with loop_mode keeps its values and links', () => {
  const inner = { nodes: [loader(7)], links: [{ id: 2, target_id: 7, target_slot: 3 }] }
  const workflow = {
    nodes: [loader(5)],
    links: [[1, 4, 0, 5, 3, 'PARALLEL_PLAN']],
    definitions: { subgraphs: [inner] }
  }
  renewWorkflow(workflow)
  for (const node of [workflow.nodes[0], inner.nodes[0]]) {
    assert.deepEqual(node.widgets_values, ['a.safetensors', 'default', 3])
    assert.deepEqual(
      node.inputs.map((input) => input.name),
      ['model_name', 'dtype', 'plan', 'group']
    )
  }
  assert.equal(workflow.links[0][4], 2)
  assert.equal(inner.links[0].target_slot, 2)
})

test('a workflow saved since stays as it is', () => {
  const node = { id: 5, type: LOADER, inputs: [], widgets_values: ['a.safetensors', 'default', 2] }
  renewWorkflow({ nodes: [node, { id: 6, type: 'KSampler', widgets_values: [1, 2, true] }] })
  assert.deepEqual(node.widgets_values, ['a.safetensors', 'default', 2])
})
