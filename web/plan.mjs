// Before anything is queued, the Parallel Plan node shows what its plan does. A loader without a plan shows what auto
// does.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { addStyle } from './elements.mjs'
import { drawLine, drawNoLine } from './loader/line.mjs'
import { addUseButtons, setPlan } from './loader/use.mjs'
import { addPlanWidget } from './plan/explain.mjs'
import { CHECKPOINT, LOADERS, makeQuestion, makeQuestionWithoutPlan, PLAN } from './plan/graph.mjs'
import { listGraphs } from './plan/links.mjs'
import { retryPlanRoute } from './plan/server.mjs'
import { showUsedWidgets } from './plan/used.mjs'
import { draw, drawNoAnswer, makeBrief, makeWhole } from './plan/view.mjs'
import { onChange } from './settings/server.mjs'

const ENDS = ['execution_success', 'execution_error', 'execution_interrupted']
const askers = new WeakMap() // by node, the function that asks the server about it
const LINE = { draw: (target, answer) => drawLine(target, answer, makeBrief), fail: drawNoLine, margin: 2 }

app.registerExtension({
  name: 'ParallelDiT.Plan',

  setup() {
    addStyle(new URL('./plan/style.css', import.meta.url))
    api.addEventListener('graphChanged', () => askAll())
    onChange(() => askAll(true))
    for (const end of ENDS) api.addEventListener(end, () => askAll(true)) // the run may have measured speeds
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
  const drawWhole = (target, answer, open) => {
    draw(target, answer, open, makeWhole)
    addUseButtons(target, answer, (values) => setPlan(node, values))
  }
  const { ask, height } = addPlanWidget(node, makeQuestion, { draw: drawWhole, fail: drawNoAnswer, margin: 10 })
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
  const isBeside = node.comfyClass === CHECKPOINT // there is room beside its outputs
  const { ask, height } = addPlanWidget(node, makeQuestionWithoutPlan, { ...LINE, isBeside })
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
