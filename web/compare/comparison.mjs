// Runs the open workflow once with each of a few plans, one after the other, by ComfyUI's queue.

import { candidates, compared, loadersOf, taken, under } from './prompts.mjs'

export class Comparison {
  /**
   * queue: see queue.mjs. host: what to ask of the page and its server: `prompt()`, the open workflow as a prompt;
   * `answer(loader)`, what POST /paralleldit/plan says of one by its id there; `runs(group)`, those that it has kept. types: of
   * loaders. onChange: called when something of `rows`, `isRunning` or `problem` has changed.
   */
  constructor(queue, host, types, onChange) {
    this.queue = queue
    this.host = host
    this.types = types
    this.onChange = onChange
    this.rows = [] // each {plans, isAlone, state: waiting, running, done, failed or leftOut, taken, times}
    this.isRunning = false
    this.problem = ''
  }

  /** group: the number of the worker group. noLoader: what to say where the workflow has none for it. */
  async run(group, noLoader) {
    if (this.isRunning) return
    this.become({ isRunning: true, problem: '', rows: [] })
    try {
      const { output, workflow } = await this.host.prompt()
      const loaders = loadersOf(output, this.types, group)
      if (!loaders.length) throw new Error(noLoader)
      const plans = candidates(await this.host.answer(loaders[0]))
      this.become({ rows: plans.map((plan) => ({ ...plan, state: 'waiting', taken: null, times: null })) })
      for (const [at, { values }] of plans.entries()) {
        this.change(at, { state: 'running' })
        const end = await this.runOne(group, at, { output: under(output, loaders, values, `${Date.now()}`), workflow })
        if (!['success', 'error'].includes(end)) break
      }
    } catch (error) {
      this.become({ problem: error.response ? String(error) : error.message }) // of a refused prompt, its errors
    } finally {
      const rows = this.rows.map((row) =>
        ['waiting', 'running'].includes(row.state) ? { ...row, state: 'leftOut' } : row
      )
      this.become({ rows, isRunning: false })
    }
  }

  /** One prompt, to its end, which it returns. */
  async runOne(group, at, prompt) {
    const { end, from, to } = await this.queue.run(prompt)
    const runs = await this.host.runs(group)
    const found = taken(runs.filter(({ began }) => from <= 1000 * began && 1000 * began <= to))
    const state = end === 'success' && found.isDone ? 'done' : ['success', 'error'].includes(end) ? 'failed' : 'leftOut'
    this.change(at, { state, taken: found })
    return end
  }

  change(at, values) {
    this.become({ rows: compared(this.rows.map((row, place) => (place === at ? { ...row, ...values } : row))) })
  }

  become(values) {
    Object.assign(this, values)
    this.onChange()
  }
}
