// Queues prompts and waits for their ends, also of one that somebody has taken from the queue.

const START = 'execution_start'
const ENDS = { execution_success: 'success', execution_error: 'error', execution_interrupted: 'interrupted' }
const WAKING = ['status', 'reconnected'] // the server tells how long its queue is whenever that changes

export class Queue {
  /** api: the editor's. */
  constructor(api) {
    this.api = api
  }

  /** How a prompt ended, see `endOf`. Raises for one that is refused. */
  async run(prompt) {
    let told = () => {}
    const wake = () => told()
    for (const event of WAKING) this.api.addEventListener(event, wake)
    try {
      const { prompt_id: id } = await this.api.queuePrompt(0, prompt)
      for (;;) {
        const next = new Promise((resolve) => {
          told = resolve
        })
        if (!(await this.isQueued(id))) return await this.endOf(id)
        await next
      }
    } finally {
      for (const event of WAKING) this.api.removeEventListener(event, wake)
    }
  }

  /** Whether it waits or runs. */
  async isQueued(id) {
    const { queue_running: running, queue_pending: pending } = await (await this.api.fetchApi('/queue')).json()
    return [...running, ...pending].some(([, each]) => each === id)
  }

  /**
   * By the history. end: success, error, interrupted, or gone for one that did not run. from, to: when it did, in
   * milliseconds since the epoch.
   */
  async endOf(id) {
    const { [id]: entry } = await (await this.api.fetchApi(`/history/${id}`)).json()
    const messages = entry?.status?.messages ?? []
    const at = (names) => messages.findLast(([name]) => names.includes(name)) ?? []
    const [name, last] = at(Object.keys(ENDS))
    return { end: ENDS[name] ?? 'gone', from: at([START])[1]?.timestamp ?? 0, to: last?.timestamp ?? 0 }
  }
}
