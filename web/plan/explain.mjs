// Adds a widget to a node that shows the server's answer about its plan. The widget is neither saved nor queued.

import { app } from '../../../scripts/app.js'
import { element } from '../elements.mjs'
import { t, textsLoaded } from '../text.mjs'
import { noteAnswer } from './answers.mjs'
import { makeAsker } from './ask.mjs'
import { makeQuestion } from './graph.mjs'
import { findRan } from './ran.mjs'
import { askServer, hasPlanRoute } from './server.mjs'
import { GAP, Height, setHidden } from './size.mjs'

const PAUSE_MS = 150
const PATIENCE_MS = 300 // until the node says that it waits
const MARGIN = 10 // pixels

/**
 * Adds the widget to a node. Returns the function that asks the server, and the node's height. draw(target, answer, why)
 * and fail(target, reason) fill the widget; why: see `makeQuestion`.
 */
export function addPlanWidget(node, draw, fail) {
  const content = element('div', { class: 'paralleldit-plan-content' })
  const frame = element('div', { class: 'paralleldit-plan' }, content)
  let contentHeight = 0 // pixels
  const measure = () => contentHeight + 2 * MARGIN
  const widget = node.addDOMWidget('mesh', 'paralleldit_plan', frame, {
    serialize: false,
    hideInPanel: true, // the panel of a node's properties would show a row without a value
    margin: MARGIN,
    getMinHeight: measure,
    getMaxHeight: measure
  })
  widget.serialize = false
  setHidden(node, [widget], true) // until there is an answer
  const height = new Height(node, () => (widget.hidden ? 0 : measure() + GAP))
  let wrong = []
  let shown // the file that the last answer is about
  let drawn = '' // the last answer as text, while it is shown: drawn anew, it would lose the focus of its buttons
  node.strokeStyles.paralleldit = () => {
    if (!content.querySelector('.paralleldit-plan-error')) return undefined
    return { color: window.LiteGraph.NODE_ERROR_COLOUR, lineWidth: 4, padding: 4 }
  }

  const ask = makeAsker({
    pause: PAUSE_MS,
    read: () => (node.graph && hasPlanRoute() ? JSON.stringify(makeQuestion(node)) : null),
    send: async (text) => {
      const { question, why } = JSON.parse(text)
      await textsLoaded
      const [file] = Object.values(question?.files ?? {})
      const isNew = file !== undefined && file !== shown
      const timer = setTimeout(() => {
        if (isNew) {
          drawn = ''
          content.replaceChildren(element('div', { class: 'paralleldit-plan-remark' }, t('plan.reading', { file })))
        }
        showContent()
      }, PATIENCE_MS)
      try {
        return { answer: question && addRun(node, await askServer(question)), why, file }
      } finally {
        clearTimeout(timer)
      }
    },
    show: ({ answer, why, file }) => {
      const text = JSON.stringify([answer, why])
      if (text !== drawn) draw(content, answer, why)
      shown = file
      drawn = text
      noteAnswer(node, answer)
      finish(answer?.widgets ?? [])
    },
    fail: (error) => {
      drawn = ''
      fail(content, error.message)
      noteAnswer(node, null)
      finish([])
    }
  })

  function finish(names) {
    wrong = names
    markWidgets(node, wrong)
    showContent()
    node.graph?.setDirtyCanvas(true, true)
  }

  function showContent() {
    const hidden = !content.childElementCount
    if (widget.hidden !== hidden) height.change(() => setHidden(node, [widget], hidden))
  }

  new ResizeObserver(() => {
    markWidgets(node, wrong) // the editor may have made a widget's row anew
    if (!content.offsetHeight || content.offsetHeight === contentHeight) return
    height.change(() => {
      contentHeight = content.offsetHeight
    })
  }).observe(content)

  const { onSerialize } = node
  node.onSerialize = function (saved) {
    onSerialize?.call(this, saved)
    saved.size[1] = height.saved
  }
  return { ask, height }
}

/** Returns the answer with the last run of the node, where only a run can tell the plan. */
function addRun(node, answer) {
  const ran = answer.plan || answer.error ? null : findRan(node)
  return ran ? { ...answer, ran, remarks: [] } : answer
}

/** Marks only the widgets of these names: by their outline on the canvas, by their row where nodes are DOM. */
function markWidgets(node, names) {
  for (const widget of node.widgets ?? []) {
    delete widget.getOutlineColor
    if (names.includes(widget.name)) widget.getOutlineColor = () => window.LiteGraph.NODE_ERROR_COLOUR
  }
  if (node.graph !== app.canvas.graph) return // a node of the graph on the screen may have the same id
  const labels = names.map((name) => node.widgets?.find((widget) => widget.name === name)?.label ?? name)
  for (const row of document.querySelectorAll(`[data-node-id="${node.id}"] [data-testid="node-widget"]`)) {
    const label = row.querySelector('[data-testid="widget-layout-field-label"]')?.textContent.trim()
    row.toggleAttribute('data-paralleldit-plan-error', labels.includes(label))
  }
}
