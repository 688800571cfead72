// Shows an error of this pack at the node that failed, in its workflow, until Run is pressed there again.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { addStyle } from './elements.mjs'
import { kindOf } from './errors/message.mjs'
import { Notice } from './errors/notice.mjs'
import { Origins } from './errors/origins.mjs'
import { loaded } from './text.mjs'

const PACK = decodeURIComponent(new URL('.', import.meta.url).pathname.split('/').at(-2))
const KEPT = 'paralleldit.origins' // while the page is reloaded

class Errors {
  constructor() {
    this.notices = new Map() // the last one of each workflow
    this.origins = new Origins(kept())
    this.frame = 0
  }

  listen() {
    const { queuePrompt } = api // no event tells the id of a prompt that is queued
    api.queuePrompt = (...request) =>
      this.origins.sent(app.extensionManager.workflow.activeWorkflow, queuePrompt.apply(api, request))
    window.addEventListener('pagehide', () => keep(this.origins))
    // Another prompt that waits in the queue starts at once: it takes no card away, but the next press of Run does.
    api.addEventListener('promptQueueing', () => this.drop(app.extensionManager.workflow.activeWorkflow))
    api.addEventListener('execution_success', ({ detail }) => this.origins.ended(detail.prompt_id))
    api.addEventListener('execution_interrupted', ({ detail }) => this.origins.ended(detail.prompt_id))
    api.addEventListener('execution_error', ({ detail }) => this.tell(detail))
  }

  async tell(event) {
    const workflow = await this.origins.of(event.prompt_id, app.extensionManager.workflow)
    this.origins.ended(event.prompt_id)
    const kind = kindOf(event, PACK)
    if (!kind || !workflow) return
    await loaded
    this.drop(workflow)
    this.notices.set(workflow, new Notice(kind, event, () => this.drop(workflow)))
    this.follow()
  }

  drop(workflow) {
    this.notices.get(workflow)?.hide()
    this.notices.delete(workflow)
  }

  /** Keeps the card of the open workflow at its node, whatever moves either; drops those of closed workflows. */
  follow() {
    cancelAnimationFrame(this.frame)
    if (this.notices.size) this.frame = requestAnimationFrame(() => this.follow())
    const { activeWorkflow, openWorkflows } = app.extensionManager.workflow
    for (const [workflow, notice] of this.notices) {
      if (!openWorkflows.includes(workflow)) this.drop(workflow)
      else if (workflow === activeWorkflow) notice.show()
      else notice.hide()
    }
  }
}

// A browser may forbid pages to keep anything: a reload then forgets whose prompts are under way.
function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) ?? {}
  } catch {
    return {}
  }
}

function keep(origins) {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(origins))
  } catch {
    /* forbidden */
  }
}

app.registerExtension({
  name: 'ParallelDiT.Errors',
  setup() {
    addStyle(new URL('./errors/card.css', import.meta.url))
    new Errors().listen()
  }
})
