// In auto mode a Parallel Plan node shows its mode alone: what it does not use is hidden, and keeps its value.

import { isAuto } from './graph.js'
import { setHidden } from './size.js'

const seldom = new WeakSet() // widgets that are advanced

/** Hides what the node does not use, and shows the rest. A linked value stays: its link has to end somewhere. */
export function showUsed(node) {
  const auto = isAuto(node)
  const isUnused = (widget) => (auto ? !isLinked(widget) : isFolded(node, widget))
  const isLinked = ({ name }) => node.inputs?.some((input) => input.widget?.name === name && input.link != null)
  const others = node.widgets.filter(({ name, serialize }) => name !== 'mode' && serialize !== false)
  for (const hidden of [true, false]) {
    const turned = others.filter((widget) => isUnused(widget) === hidden && Boolean(widget.hidden) !== hidden)
    for (const widget of turned) keepSeldom(widget, hidden && auto)
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
