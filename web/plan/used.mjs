// In auto mode a Parallel Plan node shows only its mode and what auto looks at. The other widgets are hidden and keep
// their values.

import { isAuto } from './graph.mjs'
import { setHidden } from './size.mjs'

const OF_AUTO = ['lossy']
const OF_BOTH = ['mode', 'compare']
const advancedWidgets = new WeakSet() // widgets that are advanced when shown

/**
 * Hides the widgets that the node does not use, and shows the others. A linked widget stays, since its link needs an
 * end.
 */
export function showUsedWidgets(node) {
  const auto = isAuto(node)
  const isLinked = ({ name }) => node.inputs?.some((input) => input.widget?.name === name && input.link != null)
  const isOther = (widget) => !isLinked(widget) && OF_AUTO.includes(widget.name) !== auto
  const isUnused = (widget) => isOther(widget) || (!auto && isFolded(node, widget))
  const others = node.widgets.filter(({ name, serialize }) => !OF_BOTH.includes(name) && serialize !== false)
  for (const widget of others) setAdvanced(widget, isOther(widget))
  for (const hidden of [true, false]) {
    const turned = others.filter((widget) => isUnused(widget) === hidden && Boolean(widget.hidden) !== hidden)
    if (turned.length) setHidden(node, turned, hidden)
  }
}

/**
 * Returns whether an advanced widget is folded. The canvas leaves room for folded widgets unless they are also hidden.
 */
const isFolded = (node, widget) =>
  !window.LiteGraph.vueNodesMode && !node.showAdvanced && Boolean(widget.advanced || advancedWidgets.has(widget))

/** Sets whether a widget is advanced. A hidden one must not be: the editor would show a button that reveals nothing. */
export function setAdvanced(widget, hidden) {
  if (widget.advanced || widget.options.advanced) advancedWidgets.add(widget)
  if (!advancedWidgets.has(widget)) return
  widget.advanced = !hidden
  widget.options.advanced = !hidden
}
