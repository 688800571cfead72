// Pure: workflows that were saved with an earlier version of the pack.

import { LOADER } from './graph.mjs'

const GONE = 'loop_mode' // a value of the loader, true or false, behind its dtype
const PLACE = 2
const DTYPE = { place: 1, was: 'auto', is: 'default' }

/** Has a saved workflow, its subgraphs included, as the loader is today. */
export function renewWorkflow(workflow) {
  for (const graph of [workflow, ...(workflow.definitions?.subgraphs ?? [])]) {
    for (const node of graph.nodes ?? []) {
      if (node.type === LOADER) renewLoader(node, graph.links ?? [])
    }
  }
}

/** Links are objects in a subgraph, and [id, origin, slot, target, slot, type] elsewhere; they name inputs by place. */
function renewLoader(node, links) {
  const values = node.widgets_values
  if (Array.isArray(values) && typeof values[PLACE] === 'boolean') values.splice(PLACE, 1)
  if (Array.isArray(values) && values[DTYPE.place] === DTYPE.was) values[DTYPE.place] = DTYPE.is
  const slot = (node.inputs ?? []).findIndex((input) => input.name === GONE && input.link == null)
  if (slot < 0) return
  node.inputs.splice(slot, 1)
  for (const link of links) {
    if (Array.isArray(link) && link[3] === node.id && link[4] > slot) link[4] -= 1
    else if (link.target_id === node.id && link.target_slot > slot) link.target_slot -= 1
  }
}
