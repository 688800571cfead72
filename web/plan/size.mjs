// Sets the height of a node whose content comes and goes, and shows or hides its widgets. Both work whether the editor
// draws nodes on the canvas or as DOM.

export const GAP = 4 // LiteGraph leaves this below each widget

/**
 * A node's height: what its widgets need, plus the larger of two: what its content needs, and what a person has added
 * by resizing. The content's height is not saved, so that an answer of the server is no step to undo.
 */
export class Height {
  /** content: returns the content's part of the height that the node computes. */
  constructor(node, content) {
    this.node = node
    this.content = content
    this.added = 0
  }

  get ofWidgets() {
    return this.node.computeSize()[1] - this.content()
  }

  /** Calls `act`, which changes the height that the node needs, and then sets the new height. */
  change(act) {
    this.readAdded()
    act()
    this.apply()
  }

  /** Does the same for a node that was just opened. saved: its height in the file. */
  open(saved, act) {
    act()
    this.added = Math.max(0, saved - this.ofWidgets)
    this.apply()
  }

  /** The height to save. */
  get saved() {
    this.readAdded()
    return this.ofWidgets + this.added
  }

  /** Reads how much height a person has added. Where nodes are DOM, the node's height follows its content instead. */
  readAdded() {
    if (window.LiteGraph.vueNodesMode) return
    const rest = this.node.size[1] - this.ofWidgets
    this.added = rest > this.content() ? rest : Math.min(this.added, this.content())
  }

  apply() {
    const { node } = this
    node.setSize([node.size[0], this.ofWidgets + Math.max(this.added, this.content())])
    node.graph?.setDirtyCanvas(true, true)
  }
}

/** Hides these widgets, or shows them. */
export function setHidden(node, widgets, hidden) {
  for (const widget of widgets) {
    widget.hidden = hidden
    widget.options.hidden = hidden
  }
  // Where nodes are DOM, the editor reads widget options again only when the list of widgets changes its length.
  const all = node.widgets.splice(0)
  node.widgets.push(...all)
}
