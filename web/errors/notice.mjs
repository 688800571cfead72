// One error and its card. The card is shown at its node while the workflow that failed is the open one.

import { app } from '../../../scripts/app.js'
import { translateFields } from '../text.mjs'
import { makeErrorCard } from './card.mjs'
import { describeError } from './message.mjs'
import { findNode, getRectangle, placeCard } from './place.mjs'

export class Notice {
  /** event: the `execution_error`. onDismiss: called to take the card away. */
  constructor(kind, event, onDismiss) {
    this.kind = kind
    this.event = event
    this.onDismiss = onDismiss
    this.card = null // made when it is first shown, as it has the node's title
    this.onKey = (event) => this.dismissByKey(event)
  }

  /** Puts the card at the node's present place. */
  show() {
    this.card ??= this.makeCard()
    if (!this.card.isConnected) {
      document.addEventListener('keydown', this.onKey)
      app.canvas.canvas.parentElement.append(this.card)
      this.foldedSize ??= measureSize(this.card)
    }
    const node = this.node()
    const at = node ? getRectangle(node, app.canvas.ds, window.LiteGraph.NODE_TITLE_HEIGHT) : null
    const { x, y } = placeCard(at, measureSize(this.card), this.foldedSize, measureView(), listCovered())
    this.card.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`
  }

  hide() {
    document.removeEventListener('keydown', this.onKey)
    this.card?.remove()
  }

  makeCard() {
    const name = this.node()?.title ?? this.event.node_type
    const text = describeError(this.event, this.kind)
    return makeErrorCard(this.kind, translateFields(text), name, {
      onDismiss: () => this.dismiss(),
      onShow: () => this.goToNode(),
      onRun: () => app.queuePrompt(0)
    })
  }

  /** Finds the node in the graph on the screen; undefined if the graph lacks it, or now has another node of its id. */
  node() {
    const { node_id: id, node_type: type } = this.event
    const node = findNode(app.canvas.graph, app.rootGraph, id)
    const inside = String(id).includes(':')
    return node && (inside || node.type === type) ? node : undefined
  }

  /** Shows the node: leaves a subgraph that does not have it, then centres the canvas on it. */
  goToNode() {
    if (!this.node()) app.canvas.setGraph(app.rootGraph)
    if (this.node()) app.canvas.centerOnNode(this.node())
  }

  /** Takes the card away on Escape, unless something else has the focus. */
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

const measureSize = (element) => ({ width: element.offsetWidth, height: element.offsetHeight })

/**
 * Returns the part of the canvas that no panel covers, in the canvas's pixels. It starts at the upper edge: what the
 * editor shows there comes and goes.
 */
function measureView() {
  const canvas = app.canvas.canvas.getBoundingClientRect()
  const free = document.querySelector('.graph-canvas-panel')?.getBoundingClientRect() ?? canvas
  return { x: free.x - canvas.x, y: 0, width: free.width, height: free.bottom - canvas.y }
}

/** Lists the editor's boxes in the canvas's lower right corner, in the canvas's pixels. */
function listCovered() {
  const canvas = app.canvas.canvas.getBoundingClientRect()
  const shown = ['minimap-interaction-overlay', 'zoom-controls-button']
    .map((id) => document.querySelector(`[data-testid="${id}"]`)?.parentElement.getBoundingClientRect())
    .filter((box) => box?.width)
  return shown.map(({ x, y, width, height }) => ({ x: x - canvas.x, y: y - canvas.y, width, height }))
}
