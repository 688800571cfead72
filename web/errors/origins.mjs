// Pure: which workflow a prompt is of, which the server does not say when it fails.

const MOST = 200 // prompts whose end is not heard of: cleared from the queue, or ended while the page was away
const ANSWERED = 5000 // ms

export class Origins {
  /** kept: what `toJSON` gave before the page was reloaded. */
  constructor(kept = {}) {
    this.workflows = new Map() // by the id of a prompt that has not ended
    this.paths = new Map(Object.entries(kept)) // of the workflows of those that were sent before the reload
    this.unanswered = new Set()
  }

  /** Notes that a prompt of this workflow was sent. answer: a promise of the server's, with the prompt's id. */
  sent(workflow, answer) {
    const noted = Promise.resolve(answer)
      .then(({ prompt_id: id }) => this.note(id, workflow))
      .catch(() => {}) // refused: there is no prompt
    this.unanswered.add(noted)
    noted.then(() => this.unanswered.delete(noted))
    return answer
  }

  note(id, workflow) {
    this.workflows.set(id, workflow)
    if (this.workflows.size > MOST) this.workflows.delete(this.workflows.keys().next().value)
  }

  /**
   * The workflow of a prompt, null if it is no longer open. One that was not sent from here counts as the active one's.
   * It may fail before the answer that tells its id is there. One renamed since a reload counts as closed.
   */
  async of(id, { activeWorkflow, openWorkflows }) {
    if (!this.workflows.has(id)) await this.answered()
    const isOrigin = this.workflows.has(id)
      ? (workflow) => workflow === this.workflows.get(id)
      : ({ path }) => path === this.paths.get(id)
    if (!this.workflows.has(id) && !this.paths.has(id)) return activeWorkflow
    return openWorkflows.find(isOrigin) ?? null
  }

  /** Forgets a prompt that has ended, also where the answer with its id is still to come. */
  async ended(id) {
    this.paths.delete(id)
    if (!this.workflows.delete(id)) await this.answered()
    this.workflows.delete(id)
  }

  /** Until what was sent so far is answered, but not for ever. */
  answered() {
    return Promise.race([Promise.all(this.unanswered), new Promise((done) => setTimeout(done, ANSWERED))])
  }

  /** The path of the workflow of each prompt, to be kept while the page is reloaded. */
  toJSON() {
    const paths = [...this.workflows].map(([id, { path }]) => [id, path])
    return Object.fromEntries([...this.paths, ...paths].slice(-MOST))
  }
}
