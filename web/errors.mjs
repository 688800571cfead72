// Shows an error of this pack at the node that failed, in its workflow. The next press of Run there takes it away.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { addStyle } from './elements.mjs'
import { classifyError } from './errors/message.mjs'
import { Notice } from './errors/notice.mjs'
import { Origins } from './errors/origins.mjs'
import { textsLoaded } from './text.mjs'

const PACK = decodeURIComponent(new URL('.', import.meta.url).pathname.split('/').at(-2))
const ORIGINS_KEY = 'paralleldit.origins' // in the session's storage, while the page is reloaded

class Errors {
  constructor() {
    this.notices = new Map() // by workflow, the last one
    this.origins = new Origins(readOrigins())
    this.frame = 0
  }

  listen() {
    const { queuePrompt } = api // no event carries the id of a prompt that is queued
    api.queuePrompt = (...request) =>
      this.origins.noteSent(app.extensionManager.workflow.activeWorkflow, queuePrompt.apply(api, request))
    window.addEventListener('pagehide', () => saveOrigins(this.origins))
    // The next press of Run takes the card away. The start of another queued prompt does not: it follows at once.
    api.addEventListener('promptQueueing', () => this.drop(app.extensionManager.workflow.activeWorkflow))
    api.addEventListener('execution_success', ({ detail }) => this.origins.forget(detail.prompt_id))
    api.addEventListener('execution_interrupted', ({ detail }) => this.origins.forget(detail.prompt_id))
    api.addEventListener('execution_error', ({ detail }) => this.show(detail))
  }

  async show(event) {
    const workflow = await this.origins.findWorkflow(event.prompt_id, app.extensionManager.workflow)
    this.origins.forget(event.prompt_id)
    const kind = classifyError(event, PACK)
    if (!kind || !workflow) return
    await textsLoaded
    this.drop(workflow)
    this.notices.set(workflow, new Notice(kind, event, () => this.drop(workflow)))
    this.follow()
  }

  drop(workflow) {
    this.notices.get(workflow)?.hide()
    this.notices.delete(workflow)
  }

  /** In each frame, puts the card of the open workflow at its node, and drops the cards of closed workflows. */
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

// A browser may forbid a page to store anything. A reload then forgets which workflow each running prompt came from.
function readOrigins() {
  try {
    return JSON.parse(sessionStorage.getItem(ORIGINS_KEY)) ?? {}
  } catch {
    return {}
  }
}

function saveOrigins(origins) {
  try {
    sessionStorage.setItem(ORIGINS_KEY, JSON.stringify(origins))
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
