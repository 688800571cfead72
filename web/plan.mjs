// Before anything is queued, the Parallel Plan node shows what its plan does. A loader without a plan shows what auto
// does.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { addStyle } from './elements.mjs'
import { addPlanWidget } from './plan/explain.mjs'
import { LOADERS, makeQuestion, makeQuestionWithoutPlan, PLAN } from './plan/graph.mjs'
import { listGraphs } from './plan/links.mjs'
import { retryPlanRoute } from './plan/server.mjs'
import { showUsedWidgets } from './plan/used.mjs'
import { makeBrief, makeWhole } from './plan/view.mjs'

const askers = new WeakMap() // by node, the function that asks the server about it

app.registerExtension({
  name: 'ParallelDiT.Plan',

  setup() {
    addStyle(new URL('./plan/style.css', import.meta.url))
    api.addEventListener('graphChanged', () => askAll())
    api.addEventListener('execution_success', () => askAll(true)) // the run may have measured speeds
    api.addEventListener('reconnected', () => {
      retryPlanRoute()
      askAll(true)
    })
  },

  nodeCreated(node) {
    if (node.comfyClass === PLAN) explainPlan(node)
    if (LOADERS.includes(node.comfyClass)) explainLoader(node)
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

function explainPlan(node) {
  const { ask, height } = addPlanWidget(node, makeQuestion, makeWhole)
  askers.set(node, ask)
  const updateWidgets = () => showUsedWidgets(node)
  const onChange = () => {
    height.change(updateWidgets)
    ask()
  }
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

/** A change of a loader asks for all nodes, since the plans depend on what it loads. */
function explainLoader(node) {
  const { ask, height } = addPlanWidget(node, makeQuestionWithoutPlan, makeBrief)
  askers.set(node, ask)
  callOnChange(node, () => askAll())
  callAfter(node, 'onConfigure', (saved) => height.open(saved.size[1], () => {}))
  callAfter(node, 'onAdded', () => ask())
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
