// The button that compares plans, and the table of their times. Each workflow has a table of its own, shown while it is
// open.

import { element } from '../elements.mjs'
import { makeUseButton, usePlan } from '../loader/use.mjs'
import { setAttribute, setShown, setText } from '../panel/dom.mjs'
import { describePlans, formatSeconds, formatSpeedup } from '../panel/format.mjs'
import { t } from '../text.mjs'
import { Comparison } from './comparison.mjs'
import { makeHost } from './page.mjs'
import { Queue } from './queue.mjs'

/** Makes the view of comparisons of the open workflow. app, api: the editor's. */
export function makeComparisonView(app, api) {
  const make = (onChange) => new Comparison(new Queue(api), makeHost(app, api), onChange)
  return new ComparisonView(make, () => app.extensionManager.workflow.activeWorkflow)
}

const COLUMNS = ['plan', 'step', 'times', 'seconds']

export class ComparisonView {
  /** make: makes a Comparison that calls a function after each change. getWorkflow: returns the open workflow. */
  constructor(make, getWorkflow) {
    this.make = make
    this.getWorkflow = getWorkflow
    this.comparisons = new WeakMap() // by workflow
    this.running = null
    const attributes = { type: 'button', class: 'paralleldit-small', 'data-testid': 'paralleldit-compare' }
    this.button = element('button', { ...attributes, title: t('panel.compare.help') }, t('panel.compare.start'))
    this.button.addEventListener('click', () => this.compare())
    this.progress = element('span', { role: 'status' })
    this.cancel = element('button', { type: 'button', class: 'paralleldit-small' }, t('panel.compare.cancel'))
    setAttribute(this.cancel, 'data-testid', 'paralleldit-compare-cancel')
    this.cancel.addEventListener('click', () => this.running?.cancel())
    this.job = element('div', { class: 'paralleldit-line' }, this.progress, this.cancel)
    this.problem = element('p', { class: 'paralleldit-notice paralleldit-bad', role: 'alert' })
    this.about = element('caption', { class: 'paralleldit-quiet' })
    this.body = element('tbody')
    const heads = COLUMNS.map((column) => element('th', { scope: 'col' }, t(`panel.compare.${column}`)))
    const head = element('thead', {}, element('tr', {}, ...heads, element('td')))
    const table = { class: 'paralleldit-table', 'data-testid': 'paralleldit-comparison' }
    this.table = element('table', table, this.about, head, this.body)
    this.element = element('div', {}, this.job, this.problem, this.table)
    this.draw()
  }

  /** group: the worker group's number. */
  update(group) {
    this.group = group
    if (this.drawn !== this.getWorkflow()) this.draw()
  }

  async compare() {
    const workflow = this.getWorkflow()
    const comparison = this.comparisons.get(workflow) ?? this.make(() => this.draw())
    this.comparisons.set(workflow, comparison)
    this.running = comparison
    try {
      await comparison.run(this.group, t('panel.compare.noNode'))
    } finally {
      this.running = null
      this.draw()
    }
  }

  draw() {
    this.drawn = this.getWorkflow()
    const { problem = '', rows = [], about = null } = this.comparisons.get(this.drawn) ?? {}
    setAttribute(this.button, 'aria-busy', this.running ? 'true' : null)
    setShown(this.job, this.running)
    const at = (this.running?.rows ?? []).findIndex(({ state }) => state === 'running') + 1
    setText(this.progress, at ? t('panel.compare.progress', { at, of: this.running.rows.length }) : '')
    this.button.disabled = Boolean(this.running)
    setText(this.problem, problem)
    setShown(this.problem, problem)
    setShown(this.table, rows.length)
    setText(this.about, about ? describeAbout(about) : '')
    this.body.replaceChildren(...rows.map((row) => makeRow(row, this.group)))
  }
}

/** Says what was compared: "flux · 1024 × 1024 · batch of 2". */
function describeAbout({ workflow, picture }) {
  const { width, height, length = 1, batch_size: images = 1 } = picture ?? {}
  const size = picture && [width, height, ...(length > 1 ? [length] : [])].join(' × ')
  return [workflow, size, images > 1 && t('panel.compare.images', { images })].filter(Boolean).join(' · ')
}

/** Says how far a plan's latents are from an exact one's: "error 2.4%". '' if that is not known. */
const describeError = (error) =>
  (error ?? null) === null ? '' : t('panel.compare.error', { error: `${(100 * error).toPrecision(2)}%` })

function makeRow({ plans, values, isAlone, isFastest, state, result, times: factor, error }, group) {
  const name = isAlone ? t('panel.compare.alone') : describePlans(result?.plans ?? plans, t)
  const isDone = state === 'done'
  const cells = [
    isDone && result.step !== null ? formatSeconds(result.step) : '',
    [factor && `${formatSpeedup(factor)}×`, describeError(error)].filter(Boolean).join(', '),
    isDone ? formatSeconds(result.seconds) : t(`panel.compare.state.${state}`)
  ].map((words) => element('td', {}, words))
  if (isDone) cells.at(-1).title = t('panel.compare.startup', { seconds: formatSeconds(result.startup) })
  const head = element('th', { scope: 'row' }, name)
  if (isFastest) head.append(' ', element('span', { class: 'paralleldit-fastest' }, t('panel.compare.fastest')))
  const use = element('td', {}, ...(values.mode === 'manual' ? [makeUseButton(() => usePlan(plans[0], group))] : []))
  return element('tr', { 'data-state': state }, head, ...cells, use)
}
