// A Parallelize Model node shows only its mode, and in manual mode its degrees. Others are advanced. Widgets that its
// mode does not use are hidden, and keep their values.

import { isAuto } from './graph.mjs'
import { setHidden } from './size.mjs'

export const DEGREES = ['dp', 'cfg', 'ring', 'ulysses', 'pipefusion']
const ALWAYS_USED = 'group'

/**
 * Hides the widgets that the node does not use or that are folded, and shows the others. A linked widget stays, since
 * its link needs an end. A hidden one is not advanced: the editor would show a button that reveals nothing.
 */
export function showUsedWidgets(node) {
  const auto = isAuto(node)
  const folds = !window.LiteGraph.vueNodesMode && !node.showAdvanced // the canvas leaves room for what it folds
  const isLinked = ({ name }) => node.inputs?.some((input) => input.widget?.name === name && input.link != null)
  const widgets = node.widgets.filter(({ name, serialize }) => name !== 'mode' && serialize !== false)
  const turned = { true: [], false: [] }
  for (const widget of widgets) {
    const { name } = widget
    const isUsed = isLinked(widget) || name === ALWAYS_USED || !auto
    widget.advanced = widget.options.advanced = isUsed && !isLinked(widget) && !DEGREES.includes(name)
    const hidden = !isUsed || (widget.advanced && folds)
    if (Boolean(widget.hidden) !== hidden) turned[hidden].push(widget)
  }
  for (const hidden of [true, false]) if (turned[hidden].length) setHidden(node, turned[hidden], hidden)
}
