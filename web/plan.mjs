// Before anything is queued, the Parallelize Model node shows what its plan does.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { addStyle, refill } from './elements.mjs'
import { addUseButtons, setPlan, takeAutoPlan } from './loader/use.mjs'
import { addPlanWidget } from './plan/explain.mjs'
import { PARALLELIZE } from './plan/graph.mjs'
import { listGraphs } from './plan/links.mjs'
import { noteRuns } from './plan/ran.mjs'
import { retryPlanRoute } from './plan/server.mjs'
import { showUsedWidgets } from './plan/used.mjs'
import { draw, drawNoAnswer, makeWhole } from './plan/view.mjs'
import { onChange } from './settings/server.mjs'

const ENDS = ['execution_success', 'execution_error', 'execution_interrupted']
const askers = new WeakMap() // by node, the function that asks the server about it

app.registerExtension({
  name: 'ParallelDiT.Plan',

  setup() {
    addStyle(new URL('./plan/style.css', import.meta.url))
    api.addEventListener('graphChanged', () => askAll())
    onChange(() => askAll(true))
    api.addEventListener('paralleldit.group', ({ detail }) => {
      if (noteRuns(app.rootGraph, detail.runs ?? [])) askAll(true)
    })
    for (const end of ENDS) api.addEventListener(end, () => askAll(true)) // the run may have measured speeds
    api.addEventListener('reconnected', () => {
      retryPlanRoute()
      askAll(true)
    })
  },

  nodeCreated(node) {
    if (node.comfyClass === PARALLELIZE) explain(node)
  },

  afterConfigureGraph() {
    askAll()
  },

  refreshComboInNodes() {
    askAll(true)
  }
})

function askAll(force) {
  for (const graph of listGraphs(app.rootGraph)) {
    for (const node of graph.nodes) askers.get(node)?.(force)
  }
}

function explain(node) {
  const drawWhole = (target, answer, why) => {
    refill(target, () => {
      draw(target, answer, why, makeWhole)
      addUseButtons(target, answer, (values) => setPlan([node], values))
    })
  }
  const { ask, height } = addPlanWidget(node, drawWhole, drawNoAnswer)
  askers.set(node, ask)
  const updateWidgets = () => showUsedWidgets(node)
  const onChange = () => {
    height.change(updateWidgets)
    askAll() // of two in a row, the other may now be the one that counts
  }
  const mode = node.widgets.find(({ name }) => name === 'mode')
  callAfter(mode, 'callback', () => takeAutoPlan(node))
  callOnChange(node, onChange)
  callAfter(node, 'onConfigure', (saved) => height.open(saved.size[1], updateWidgets))
  callAfter(node, 'onAdded', onChange)
  const { toggleAdvanced } = node
  node.toggleAdvanced = (...args) => {
    height.change(() => {
      toggleAdvanced?.apply(node, args)
      updateWidgets()
    })
  }
}

/** Calls `onChange` when a widget of the node changes, or a link to or from it. */
function callOnChange(node, onChange) {
  for (const widget of node.widgets ?? []) callAfter(widget, 'callback', () => onChange())
  callAfter(node, 'onConnectionsChange', () => onChange())
}

function callAfter(object, name, after) {
  const before = object[name]
  object[name] = function (...args) {
    const result = before?.apply(this, args)
    after(...args)
    return result
  }
}
