// Queues prompts and waits for their ends, also of one that somebody has taken from the queue.

const ENDS = { execution_success: 'success', execution_error: 'error', execution_interrupted: 'interrupted' }

export class Queue {
  /** api: the editor's. */
  constructor(api) {
    this.api = api
  }

  /** How a prompt ended: success, error, interrupted, or gone. Raises for one that is refused. */
  async run(prompt) {
    const ends = new Map()
    let told = () => {}
    const listeners = Object.entries(ENDS).map(([event, end]) => [
      event,
      ({ detail }) => {
        ends.set(detail.prompt_id, end)
        told()
      }
    ])
    listeners.push(['status', () => told()], ['reconnected', () => told()])
    for (const [event, listener] of listeners) this.api.addEventListener(event, listener)
    try {
      const { prompt_id: id } = await this.api.queuePrompt(0, prompt)
      for (;;) {
        const next = new Promise((resolve) => {
          told = resolve
        })
        const isQueued = ends.has(id) || (await this.isQueued(id))
        if (ends.has(id)) return ends.get(id)
        if (!isQueued) return (await this.endOf(id)) ?? 'gone'
        await next
      }
    } finally {
      for (const [event, listener] of listeners) this.api.removeEventListener(event, listener)
    }
  }

  /** Whether it waits or runs. */
  async isQueued(id) {
    const { queue_running: running, queue_pending: pending } = await (await this.api.fetchApi('/queue')).json()
    return [...running, ...pending].some(([, each]) => each === id)
  }

  /** By the history, of one whose end was told of while nobody was connected. */
  async endOf(id) {
    const { [id]: entry } = await (await this.api.fetchApi(`/history/${id}`)).json()
    const kinds = entry?.status?.messages?.map(([kind]) => ENDS[kind]).filter(Boolean) ?? []
    return kinds.at(-1)
  }
}
