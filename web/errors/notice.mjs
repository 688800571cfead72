// One error: its card, which is in the page and at its node while the workflow that failed is the open one.

import { app } from '../../../scripts/app.js'
import { advised } from '../text.mjs'
import { errorCard } from './card.mjs'
import { explain } from './message.mjs'
import { nodeIn, place, rectangle } from './place.mjs'

export class Notice {
  /** event: the `execution_error`. onDismiss: called when the card is to go. */
  constructor(kind, event, onDismiss) {
    this.kind = kind
    this.event = event
    this.onDismiss = onDismiss
    this.card = null // made where its node is first seen, whose title it has
    this.onKey = (event) => this.dismissByKey(event)
  }

  /** Puts the card at the node, wherever that is by now. */
  show() {
    this.card ??= this.makeCard()
    if (!this.card.isConnected) {
      document.addEventListener('keydown', this.onKey)
      app.canvas.canvas.parentElement.append(this.card)
      this.closed ??= size(this.card)
    }
    const node = this.node()
    const at = node ? rectangle(node, app.canvas.ds, window.LiteGraph.NODE_TITLE_HEIGHT) : null
    const { x, y } = place(at, size(this.card), this.closed, view(), taken())
    this.card.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`
  }

  hide() {
    document.removeEventListener('keydown', this.onKey)
    this.card?.remove()
  }

  makeCard() {
    const name = this.node()?.title ?? this.event.node_type
    const said = explain(this.event, this.kind)
    return errorCard(this.kind, { ...said, advice: advised(said.advice) }, name, {
      onDismiss: () => this.dismiss(),
      onShow: () => this.goToNode()
    })
  }

  /** The node in the graph that is shown; undefined where it is not in it, or is another one by now. */
  node() {
    const { node_id: id, node_type: type } = this.event
    const node = nodeIn(app.canvas.graph, app.rootGraph, id)
    const inside = String(id).includes(':')
    return node && (inside || node.type === type) ? node : undefined
  }

  /** Goes to the node, out of a subgraph that it is not in. */
  goToNode() {
    if (!this.node()) app.canvas.setGraph(app.rootGraph)
    if (this.node()) app.canvas.centerOnNode(this.node())
  }

  /** Escape belongs to whatever else has the focus. */
  dismissByKey(event) {
    const idle = document.activeElement === document.body || document.activeElement === app.canvas.canvas
    if (event.key === 'Escape' && idle && !event.defaultPrevented) this.dismiss()
  }

  dismiss() {
    const focused = this.card.contains(document.activeElement)
    this.onDismiss()
    if (focused) app.canvas.canvas.focus()
  }
}

const size = (element) => ({ width: element.offsetWidth, height: element.offsetHeight })

/** The part of the canvas that no panel covers, in its pixels; what lies along its upper edge comes and goes. */
function view() {
  const canvas = app.canvas.canvas.getBoundingClientRect()
  const free = document.querySelector('.graph-canvas-panel')?.getBoundingClientRect() ?? canvas
  return { x: free.x - canvas.x, y: 0, width: free.width, height: free.bottom - canvas.y }
}

/** What the editor has in the canvas's lower right corner, in the canvas's pixels. */
function taken() {
  const canvas = app.canvas.canvas.getBoundingClientRect()
  const shown = ['minimap-interaction-overlay', 'zoom-controls-button']
    .map((id) => document.querySelector(`[data-testid="${id}"]`)?.parentElement.getBoundingClientRect())
    .filter((box) => box?.width)
  return shown.map(({ x, y, width, height }) => ({ x: x - canvas.x, y: y - canvas.y, width, height }))
}
