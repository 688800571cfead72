// Queues prompts and waits until they have ended, or until somebody has removed them from the queue.

const START = 'execution_start'
const ENDS = { execution_success: 'success', execution_error: 'error', execution_interrupted: 'interrupted' }
const WAKING = ['status', 'reconnected'] // the server sends a status whenever the length of its queue changes

export class Queue {
  /** api: the editor's. */
  constructor(api) {
    this.api = api
    this.id = null // of the prompt that it waits for
  }

  /**
   * Queues a prompt, waits for it, and returns how it ended, see `readEnd`. Throws if the server refuses the prompt.
   */
  async run(prompt) {
    let resolveNext = () => {}
    const wake = () => resolveNext()
    for (const event of WAKING) this.api.addEventListener(event, wake)
    try {
      const { prompt_id: id } = await this.api.queuePrompt(0, prompt)
      this.id = id
      for (;;) {
        const next = new Promise((resolve) => {
          resolveNext = resolve
        })
        if (!(await this.isQueued(id))) return await this.readEnd(id)
        await next
      }
    } finally {
      for (const event of WAKING) this.api.removeEventListener(event, wake)
    }
  }

  /** Takes the prompt out of the queue, or interrupts it. */
  async cancel() {
    const post = (path, body) => this.api.fetchApi(path, { method: 'POST', body: JSON.stringify(body) })
    await post('/queue', { delete: [this.id] })
    await post('/interrupt', { prompt_id: this.id })
  }

  /** Returns whether a prompt waits or runs. */
  async isQueued(id) {
    const { queue_running: running, queue_pending: pending } = await (await this.api.fetchApi('/queue')).json()
    return [...running, ...pending].some(([, each]) => each === id)
  }

  /**
   * Reads from the history how a prompt ended. end: success, error, interrupted, or gone if it never ran. from, to:
   * when it ran, in milliseconds since the epoch.
   */
  async readEnd(id) {
    const { [id]: entry } = await (await this.api.fetchApi(`/history/${id}`)).json()
    const messages = entry?.status?.messages ?? []
    const at = (names) => messages.findLast(([name]) => names.includes(name)) ?? []
    const [name, last] = at(Object.keys(ENDS))
    return { end: ENDS[name] ?? 'gone', from: at([START])[1]?.timestamp ?? 0, to: last?.timestamp ?? 0 }
  }
}
