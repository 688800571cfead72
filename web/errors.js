// Shows an error of this pack at the node that failed, until Run is pressed again or another workflow is opened.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { addStyle } from './elements.js'
import { errorCard } from './errors/card.js'
import { explain, kindOf } from './errors/message.js'
import { nodeIn, place, rectangle } from './errors/place.js'
import { loaded } from './text.js'

const PACK = decodeURIComponent(new URL('.', import.meta.url).pathname.split('/').at(-2))
let shown = null

/** One error on the screen. */
class Shown {
  constructor(kind, event) {
    this.nodeId = event.node_id
    this.nodeType = event.node_type
    this.workflow = app.extensionManager.workflow.activeWorkflow
    const name = this.node()?.title ?? event.node_type
    this.card = errorCard(kind, explain(event, kind), name, {
      onDismiss: () => this.dismiss(),
      onShow: () => this.show(),
    })
    this.onKey = (event) => this.dismissByKey(event)
    document.addEventListener('keydown', this.onKey)
    container().append(this.card)
    this.closed = size(this.card)
    this.follow()
  }

  /** The node in the graph that is shown; undefined where it is not in it, or is another one by now. */
  node() {
    const node = nodeIn(app.canvas.graph, app.rootGraph, this.nodeId)
    const inside = String(this.nodeId).includes(':')
    return node && (inside || node.type === this.nodeType) ? node : undefined
  }

  /** Goes to the node, out of a subgraph that it is not in. */
  show() {
    if (!this.node()) app.canvas.setGraph(app.rootGraph)
    if (this.node()) app.canvas.centerOnNode(this.node())
  }

  /** Keeps the card at the node, whatever moves either. */
  follow() {
    if (app.extensionManager.workflow.activeWorkflow !== this.workflow) return this.remove()
    const node = this.node()
    const at = node ? rectangle(node, app.canvas.ds, window.LiteGraph.NODE_TITLE_HEIGHT) : null
    const { x, y } = place(at, size(this.card), this.closed, view())
    this.card.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`
    this.frame = requestAnimationFrame(() => this.follow())
  }

  /** Escape belongs to whatever else has the focus. */
  dismissByKey(event) {
    const idle = document.activeElement === document.body || document.activeElement === app.canvas.canvas
    if (event.key === 'Escape' && idle && !event.defaultPrevented) this.dismiss()
  }

  dismiss() {
    const focused = this.card.contains(document.activeElement)
    this.remove()
    if (focused) app.canvas.canvas.focus()
  }

  remove() {
    cancelAnimationFrame(this.frame)
    document.removeEventListener('keydown', this.onKey)
    this.card.remove()
    if (shown === this) shown = null
  }
}

const container = () => app.canvas.canvas.parentElement
const size = (element) => ({ width: element.offsetWidth, height: element.offsetHeight })

/** The part of the canvas that no panel covers, in its pixels; what lies along its upper edge comes and goes. */
function view() {
  const canvas = app.canvas.canvas.getBoundingClientRect()
  const free = document.querySelector('.graph-canvas-panel')?.getBoundingClientRect() ?? canvas
  return { x: free.x - canvas.x, y: 0, width: free.width, height: free.bottom - canvas.y }
}

app.registerExtension({
  name: 'ParallelDiT.Errors',
  setup() {
    addStyle(new URL('./errors/card.css', import.meta.url))
    // Another prompt that waits in the queue starts at once: it takes no card away, but the next press of Run does.
    api.addEventListener('promptQueueing', () => shown?.remove())
    api.addEventListener('execution_error', async ({ detail }) => {
      const kind = kindOf(detail, PACK)
      if (!kind) return
      await loaded
      shown?.remove()
      shown = new Shown(kind, detail)
    })
  },
})
