// Opens workflows that were saved when the pack's nodes had inputs that are gone.

import { app } from '../../scripts/app.js'
import { PARALLELIZE } from './plan/graph.mjs'
import { listGraphs } from './plan/links.mjs'

const FORMER_PLAN = 'ParallelDiT_Plan' // the editor offers to replace it, and reads its values as Parallelize Model's
const PLACE = 14 // of `group` among the saved values
const inputNames = new WeakMap() // by node, the names of its inputs

app.registerExtension({
  name: 'ParallelDiT.Former',

  nodeCreated(node) {
    if (!node.comfyClass?.startsWith('ParallelDiT_')) return
    inputNames.set(node, new Set(node.inputs.map(({ name }) => name)))
    if (node.comfyClass !== PARALLELIZE) return
    const { configure } = node
    node.configure = (saved) => {
      removeFormerValues(saved.widgets_values, true)
      configure.call(node, saved)
    }
  },

  afterConfigureGraph() {
    for (const node of listGraphs(app.rootGraph).flatMap(({ nodes }) => nodes)) {
      if (node.type === FORMER_PLAN) removeFormerValues(node.last_serialization?.widgets_values)
      removeFormerInputs(node)
    }
  }
})

/**
 * Removes the values of inputs that are gone, which have no names: `sparse`, `lossy`, `compare` and `pieces`. In a
 * Parallelize Model they stood before `group`.
 */
function removeFormerValues(values, hasGroup) {
  values?.splice(PLACE, values.length - PLACE - (hasGroup ? 1 : 0))
}

/** Removes inputs that only the file has, and their links. */
function removeFormerInputs(node) {
  const names = inputNames.get(node)
  const former = names ? node.inputs.filter(({ name }) => !names.has(name)) : []
  for (const input of former) node.removeInput(node.inputs.indexOf(input))
}
