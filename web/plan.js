// The Parallel Plan node says, before anything is queued, what its plan does: a drawing of the mesh, or the error.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { addStyle, element } from './elements.js'
import { asker } from './plan/ask.js'
import { LOADERS, PLAN, questionOf } from './plan/graph.js'
import { renewWorkflow } from './plan/old.js'
import { draw, drawSilence } from './plan/view.js'
import { loaded } from './text.js'

const PAUSE_MS = 150
const MARGIN = 10
const NO_ROUTE = 404

const asks = new WeakMap() // by plan node, what asks for it
let hasRoute = true

app.registerExtension({
  name: 'ParallelDiT.Plan',

  setup() {
    addStyle(new URL('./plan/style.css', import.meta.url))
    api.addEventListener('graphChanged', () => askAll())
    api.addEventListener('reconnected', () => {
      hasRoute = true
      askAll(true)
    })
  },

  beforeConfigureGraph(workflow) {
    renewWorkflow(workflow)
  },

  nodeCreated(node) {
    if (node.comfyClass === PLAN) explain(node)
    if (LOADERS.includes(node.comfyClass)) follow(node, () => askAll())
  },

  afterConfigureGraph() {
    askAll()
  },

  refreshComboInNodes() {
    askAll(true)
  }
})

function askAll(force) {
  for (const graph of [app.rootGraph, ...app.rootGraph.subgraphs.values()]) {
    for (const node of graph.nodes) asks.get(node)?.(force)
  }
}

/** Gives a plan node the widget that explains it; nothing of it is saved or queued. */
function explain(node) {
  const content = element('div', { class: 'paralleldit-plan-content' })
  const frame = element('div', { class: 'paralleldit-plan' }, content)
  let height = 0
  const widget = node.addDOMWidget('mesh', 'paralleldit_plan', frame, {
    serialize: false,
    margin: MARGIN,
    getMinHeight: () => height + 2 * MARGIN,
    getMaxHeight: () => height + 2 * MARGIN
  })
  widget.serialize = false
  let wrong = []
  node.strokeStyles.paralleldit = () => {
    if (!content.querySelector('.paralleldit-plan-error')) return undefined
    return { color: window.LiteGraph.NODE_ERROR_COLOUR, lineWidth: 4, padding: 4 }
  }

  const ask = asker({
    pause: PAUSE_MS,
    read: () => (node.graph && hasRoute ? JSON.stringify(questionOf(node)) : null),
    send: async (text) => {
      const { question, open } = JSON.parse(text)
      await loaded
      return { answer: open.length ? null : await request(question), open }
    },
    show: ({ answer, open }) => {
      draw(content, answer, open)
      settle(answer?.widgets ?? [])
    },
    fail: (error) => {
      drawSilence(content, error.message)
      settle([])
    }
  })

  function settle(names) {
    wrong = names
    mark(node, wrong)
    node.graph?.setDirtyCanvas(true, true)
  }

  new ResizeObserver(() => {
    mark(node, wrong) // the row of a widget may be a new one
    if (!content.offsetHeight || content.offsetHeight === height) return
    const isSnug = node.size[1] <= node.computeSize()[1]
    height = content.offsetHeight
    if (isSnug) node.setSize([node.size[0], node.computeSize()[1]])
    node.graph?.setDirtyCanvas(true, true)
  }).observe(content)

  // The height of the drawing follows from the answer: saved, each answer would be a step to undo.
  const { onSerialize } = node
  node.onSerialize = function (saved) {
    onSerialize?.call(this, saved)
    if (node.size[1] <= node.computeSize()[1]) saved.size[1] -= height
  }

  asks.set(node, ask)
  follow(node, ask)
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
    after()
    return result
  }
}

/** The server's answer. Raises Error with what there is to say of it. */
async function request(question) {
  const response = await api.fetchApi('/paralleldit/plan', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(question)
  })
  if (response.ok) return response.json()
  hasRoute = response.status !== NO_ROUTE
  throw new Error(hasRoute ? await response.text() : `HTTP ${NO_ROUTE}`)
}

/** Marks the widgets of these names, and no others: on the canvas by their outline, as DOM by their row. */
function mark(node, names) {
  for (const widget of node.widgets ?? []) {
    delete widget.getOutlineColor
    if (names.includes(widget.name)) widget.getOutlineColor = () => window.LiteGraph.NODE_ERROR_COLOUR
  }
  if (node.graph !== app.canvas.graph) return // a node that is seen may have the same id
  const labels = names.map((name) => node.widgets?.find((widget) => widget.name === name)?.label ?? name)
  for (const row of document.querySelectorAll(`[data-node-id="${node.id}"] [data-testid="node-widget"]`)) {
    const label = row.querySelector('[data-testid="widget-layout-field-label"]')?.textContent.trim()
    row.toggleAttribute('data-paralleldit-plan-error', labels.includes(label))
  }
}
