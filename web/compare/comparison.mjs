// Runs the open workflow once under each of a few plans, one after the other, through ComfyUI's queue.

import { addSpeedups, applyPlan, findNodes, listCandidates, sortRows, summarizeRuns } from './prompts.mjs'

export class Comparison {
  /**
   * queue: see queue.mjs. host: asks the page and its server. `prompt()` returns the open workflow as a prompt,
   * `about(id)` the open workflow's name and what is drawn with the node of that id, `answers(id)` what POST
   * /paralleldit/plan says about an automatic plan there and about its own, `runs(group)` the runs that the server keeps,
   * `error(group, run, exact)` the relative error of a run against an exact one, or null; `state(group)` returns the
   * group's state, and `restore(group, state)` brings it back. onChange: called after `rows`, `isRunning` or `problem`
   * changed.
   */
  constructor(queue, host, onChange) {
    this.queue = queue
    this.host = host
    this.onChange = onChange
    // each {plans, isAlone, isLossy, isFastest, state: waiting, running, done, failed or leftOut, result, times, error}
    this.rows = []
    this.isRunning = this.isCancelled = false
    this.problem = ''
    this.about = null // {workflow, picture}, once it runs
  }

  /** group: the worker group's number. noNode: the problem to show if the workflow has no node of this group. */
  async run(group, noNode) {
    if (this.isRunning) return
    this.set({ isRunning: true, isCancelled: false, problem: '', rows: [] })
    let before = null
    try {
      before = await this.host.state(group)
      const { output, workflow } = await this.host.prompt()
      const nodes = findNodes(output, group)
      if (!nodes.length) throw new Error(noNode)
      const last = nodes.at(-1) // of two in a row, the one whose plan counts
      this.set({ about: this.host.about(last) })
      const plans = listCandidates(...(await this.host.answers(last)))
      this.set({ rows: plans.map((plan) => ({ ...plan, state: 'waiting', result: null, times: null })) })
      for (const [at, { values }] of plans.entries()) {
        this.change(at, { state: 'running' })
        const end = await this.runOne(group, at, {
          output: applyPlan(output, nodes, values, `${Date.now()}`),
          workflow
        })
        if (this.isCancelled || !['success', 'error'].includes(end)) break
      }
    } catch (error) {
      this.set({ problem: error.response ? String(error) : error.message }) // a refused prompt has several errors
    } finally {
      const rows = this.rows.map((row) =>
        ['waiting', 'running'].includes(row.state) ? { ...row, state: 'leftOut' } : row
      )
      if (rows.some(({ state }) => state !== 'leftOut')) await this.host.restore(group, before)
      this.set({ rows: sortRows(rows), isRunning: false })
    }
  }

  /** Ends the comparison: interrupts the prompt that runs, and leaves out the others. */
  cancel() {
    this.isCancelled = true
    return this.queue.cancel()
  }

  /** Runs one prompt and returns how it ended. */
  async runOne(group, at, prompt) {
    const { end, from, to } = await this.queue.run(prompt)
    const runs = await this.host.runs(group)
    const found = summarizeRuns(runs.filter(({ began }) => from <= 1000 * began && 1000 * began <= to))
    const state = end === 'success' && found.isDone ? 'done' : ['success', 'error'].includes(end) ? 'failed' : 'leftOut'
    const exact = this.rows.findLast((row) => row.state === 'done' && !row.isLossy)
    const isKnown = state === 'done' && this.rows[at].isLossy && exact
    const error = isKnown ? await this.host.error(group, found.last, exact.result.last) : null
    this.change(at, { state, result: found, error })
    return end
  }

  change(at, values) {
    this.set({ rows: addSpeedups(this.rows.map((row, place) => (place === at ? { ...row, ...values } : row))) })
  }

  set(values) {
    Object.assign(this, values)
    this.onChange()
  }
}
