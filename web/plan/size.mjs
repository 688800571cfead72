// The height of a node whose content comes and goes, and which of its widgets are seen: in both of the editor's ways to
// draw nodes.

export const GAP = 4 // that LiteGraph leaves below each widget

const heights = new WeakMap() // by node

/** The size below which the editor has no node of this kind, as it saves it: without content that comes and goes. */
export function leastSize(node) {
  const [width, height] = node.computeSize()
  return [width, heights.get(node)?.ofWidgets ?? height]
}

/**
 * A node's height: what its widgets need, and beside that the more of what its content needs and what a person has given
 * it. The content is not saved, so that an answer of the server is no step to undo.
 */
export class Height {
  /** content: what of the height that the node computes its content takes. */
  constructor(node, content) {
    this.node = node
    this.content = content
    this.given = 0
    heights.set(node, this)
  }

  get ofWidgets() {
    return this.node.computeSize()[1] - this.content()
  }

  /** Does what changes the height that the node needs. */
  change(act) {
    this.note()
    act()
    this.apply()
  }

  /** The same, when a saved node is opened. An earlier version may have saved it with all that is hidden since. */
  open(saved, act) {
    const before = this.ofWidgets
    const folded = this.node.widgets.filter((widget) => widget.advanced && !widget.hidden).length
    act()
    const now = this.ofWidgets
    const isOld = saved >= before && before > now
    this.given = Math.max(0, saved - (isOld ? before + folded * (window.LiteGraph.NODE_WIDGET_HEIGHT + GAP) : now))
    this.apply()
  }

  /** What is to be saved. */
  get saved() {
    this.note()
    return this.ofWidgets + this.given
  }

  /** Looks at what a person has made of it; where nodes are DOM, it is the content that does. */
  note() {
    if (window.LiteGraph.vueNodesMode) return
    const beside = this.node.size[1] - this.ofWidgets
    this.given = beside > this.content() ? beside : Math.min(this.given, this.content())
  }

  apply() {
    const { node } = this
    node.setSize([node.size[0], this.ofWidgets + Math.max(this.given, this.content())])
    node.graph?.setDirtyCanvas(true, true)
  }
}

/** Has these widgets seen, or not. */
export function setHidden(node, widgets, hidden) {
  for (const widget of widgets) {
    widget.hidden = hidden
    widget.options.hidden = hidden
  }
  // Nodes that are DOM read their widgets' options anew only when the list of widgets changes, as its length does.
  const all = node.widgets.splice(0)
  node.widgets.push(...all)
}
