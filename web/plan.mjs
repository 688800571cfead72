// The Parallel Plan node says, before anything is queued, what its plan does, and a loader without one what auto does.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { addStyle } from './elements.mjs'
import { explain } from './plan/explain.mjs'
import { LOADERS, PLAN, questionOf, questionWithoutPlan } from './plan/graph.mjs'
import { graphsOf } from './plan/links.mjs'
import { askAgain } from './plan/server.mjs'
import { showUsed } from './plan/used.mjs'
import { brief, whole } from './plan/view.mjs'

const asks = new WeakMap() // by node, what asks for it

app.registerExtension({
  name: 'ParallelDiT.Plan',

  setup() {
    addStyle(new URL('./plan/style.css', import.meta.url))
    api.addEventListener('graphChanged', () => askAll())
    api.addEventListener('execution_success', () => askAll(true)) // by which speeds may have been measured
    api.addEventListener('reconnected', () => {
      askAgain()
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
  for (const graph of graphsOf(app.rootGraph)) {
    for (const node of graph.nodes) asks.get(node)?.(force)
  }
}

function explainPlan(node) {
  const { ask, height } = explain(node, questionOf, whole)
  asks.set(node, ask)
  const show = () => showUsed(node)
  const changed = () => {
    height.change(show)
    ask()
  }
  follow(node, changed)
  chain(node, 'onConfigure', (saved) => height.open(saved.size[1], show))
  chain(node, 'onAdded', changed)
  const { toggleAdvanced } = node
  node.toggleAdvanced = (...args) => {
    height.change(() => {
      toggleAdvanced?.apply(node, args)
      show()
    })
  }
}

/** What it loads concerns the plans, too. */
function explainLoader(node) {
  const { ask, height } = explain(node, questionWithoutPlan, brief)
  asks.set(node, ask)
  follow(node, () => askAll())
  chain(node, 'onConfigure', (saved) => height.open(saved.size[1], () => {}))
  chain(node, 'onAdded', () => ask())
}

/** Has `changed` called when a widget of the node changes, or a link to or from it. */
function follow(node, changed) {
  for (const widget of node.widgets ?? []) chain(widget, 'callback', () => changed())
  chain(node, 'onConnectionsChange', () => changed())
}

function chain(object, name, after) {
  const before = object[name]
  object[name] = function (...args) {
    const result = before?.apply(this, args)
    after(...args)
    return result
  }
}
