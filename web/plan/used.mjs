// In auto mode a Parallel Plan node shows its mode alone: what it does not use is hidden, and keeps its value.

import { isAuto } from './graph.mjs'
import { setHidden } from './size.mjs'

const seldom = new WeakSet() // widgets that are advanced

/** Hides what the node does not use, and shows the rest. A linked value stays: its link has to end somewhere. */
export function showUsed(node) {
  const auto = isAuto(node)
  const isLinked = ({ name }) => node.inputs?.some((input) => input.widget?.name === name && input.link != null)
  const isUnused = (widget) => (auto ? !isLinked(widget) : isFolded(node, widget))
  const others = node.widgets.filter(({ name, serialize }) => name !== 'mode' && serialize !== false)
  for (const widget of others) keepSeldom(widget, auto && !isLinked(widget))
  for (const hidden of [true, false]) {
    const turned = others.filter((widget) => isUnused(widget) === hidden && Boolean(widget.hidden) !== hidden)
    if (turned.length) setHidden(node, turned, hidden)
  }
}

/** The canvas leaves room for advanced widgets that are not shown, unless they are hidden, too. */
const isFolded = (node, widget) =>
  !window.LiteGraph.vueNodesMode && !node.showAdvanced && Boolean(widget.advanced || seldom.has(widget))

/** What is hidden is not advanced either, or there would be a button to show nothing. */
function keepSeldom(widget, hidden) {
  if (widget.advanced || widget.options.advanced) seldom.add(widget)
  if (!seldom.has(widget)) return
  widget.advanced = !hidden
  widget.options.advanced = !hidden
}
