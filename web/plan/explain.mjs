// What a node says of its plan: a widget with the server's answer about it. Nothing of it is saved or queued.

import { app } from '../../../scripts/app.js'
import { element } from '../elements.mjs'
import { loaded } from '../text.mjs'
import { note } from './answers.mjs'
import { asker } from './ask.mjs'
import { canAnswer, request } from './server.mjs'
import { GAP, Height, setHidden } from './size.mjs'
import { draw, drawSilence } from './view.mjs'

const PAUSE_MS = 150
const MARGIN = 10

/**
 * Gives a node the widget; returns what has it ask, and the node's height. questionOf: the node to its question, null for
 * none, and the values that only a run can tell. parts: what of the answer it shows, see `draw`.
 */
export function explain(node, questionOf, parts) {
  const content = element('div', { class: 'paralleldit-plan-content' })
  const frame = element('div', { class: 'paralleldit-plan' }, content)
  let lines = 0 // pixels
  const widget = node.addDOMWidget('mesh', 'paralleldit_plan', frame, {
    serialize: false,
    hideInPanel: true, // of a node's properties, where it would be a row without a value
    margin: MARGIN,
    getMinHeight: () => lines + 2 * MARGIN,
    getMaxHeight: () => lines + 2 * MARGIN
  })
  widget.serialize = false
  setHidden(node, [widget], true) // until there is something to say
  const height = new Height(node, () => (widget.hidden ? 0 : lines + 2 * MARGIN + GAP))
  let wrong = []
  node.strokeStyles.paralleldit = () => {
    if (!content.querySelector('.paralleldit-plan-error')) return undefined
    return { color: window.LiteGraph.NODE_ERROR_COLOUR, lineWidth: 4, padding: 4 }
  }

  const ask = asker({
    pause: PAUSE_MS,
    read: () => (node.graph && canAnswer() ? JSON.stringify(questionOf(node)) : null),
    send: async (text) => {
      const { question, open } = JSON.parse(text)
      await loaded
      return { answer: open.length || !question ? null : await request(question), open }
    },
    show: ({ answer, open }) => {
      draw(content, answer, open, parts)
      note(node, answer)
      settle(answer?.widgets ?? [])
    },
    fail: (error) => {
      drawSilence(content, error.message)
      note(node, null)
      settle([])
    }
  })

  function settle(names) {
    wrong = names
    mark(node, wrong)
    showContent()
    node.graph?.setDirtyCanvas(true, true)
  }

  function showContent() {
    const hidden = !content.childElementCount
    if (widget.hidden !== hidden) height.change(() => setHidden(node, [widget], hidden))
  }

  new ResizeObserver(() => {
    mark(node, wrong) // the row of a widget may be a new one
    if (!content.offsetHeight || content.offsetHeight === lines) return
    height.change(() => {
      lines = content.offsetHeight
    })
  }).observe(content)

  const { onSerialize } = node
  node.onSerialize = function (saved) {
    onSerialize?.call(this, saved)
    saved.size[1] = height.saved
  }
  return { ask, height }
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
