// Pure: remembers which workflow each prompt came from. The server does not say that when a prompt fails.

const MOST = 200 // prompts to remember: the end of some is never heard, as of those cleared from the queue
const ANSWER_MS = 5000

export class Origins {
  /** saved: what `toJSON` returned before the page was reloaded. */
  constructor(saved = {}) {
    this.workflows = new Map() // by the id of a prompt that has not ended
    this.paths = new Map(Object.entries(saved)) // by the id of a prompt from before the reload, its workflow's path
    this.unanswered = new Set()
  }

  /**
   * Notes that this workflow's prompt was sent. answer: a promise of the server's answer, which has the prompt's id.
   */
  noteSent(workflow, answer) {
    const noted = Promise.resolve(answer)
      .then(({ prompt_id: id }) => this.note(id, workflow))
      .catch(() => {}) // the server refused it, so there is no prompt
    this.unanswered.add(noted)
    noted.then(() => this.unanswered.delete(noted))
    return answer
  }

  note(id, workflow) {
    this.workflows.set(id, workflow)
    if (this.workflows.size > MOST) this.workflows.delete(this.workflows.keys().next().value)
  }

  /**
   * Finds the workflow of a prompt; null if it is no longer open. A prompt from elsewhere counts as the active
   * workflow's. A prompt may fail before the answer with its id arrives, so this waits for the answer. A workflow that
   * was renamed after a reload counts as closed.
   */
  async findWorkflow(id, { activeWorkflow, openWorkflows }) {
    if (!this.workflows.has(id)) await this.waitForAnswers()
    const isOrigin = this.workflows.has(id)
      ? (workflow) => workflow === this.workflows.get(id)
      : ({ path }) => path === this.paths.get(id)
    if (!this.workflows.has(id) && !this.paths.has(id)) return activeWorkflow
    return openWorkflows.find(isOrigin) ?? null
  }

  /** Forgets a prompt that has ended, even if the answer with its id has yet to arrive. */
  async forget(id) {
    this.paths.delete(id)
    if (!this.workflows.delete(id)) await this.waitForAnswers()
    this.workflows.delete(id)
  }

  /** Waits until all prompts sent so far are answered, at most ANSWER_MS. */
  waitForAnswers() {
    return Promise.race([Promise.all(this.unanswered), new Promise((done) => setTimeout(done, ANSWER_MS))])
  }

  /** Returns each prompt's workflow path, to be saved while the page is reloaded. */
  toJSON() {
    const paths = [...this.workflows].map(([id, { path }]) => [id, path])
    return Object.fromEntries([...this.paths, ...paths].slice(-MOST))
  }
}
