// The button that compares plans, and the table of their times.

import { element } from '../elements.mjs'
import { setAttribute, setShown, setText } from '../panel/dom.mjs'
import { describePlans, formatSeconds, formatSpeedup } from '../panel/format.mjs'
import { LOADERS } from '../plan/graph.mjs'
import { t } from '../text.mjs'
import { Comparison } from './comparison.mjs'
import { makeHost } from './page.mjs'
import { Queue } from './queue.mjs'

/** Makes the view of a comparison of the open workflow. app, api: the editor's. */
export function makeComparisonView(app, api) {
  const comparison = new Comparison(new Queue(api), makeHost(app, api), LOADERS, () => view.draw())
  const view = new ComparisonView(comparison)
  return view
}

const COLUMNS = ['plan', 'seconds', 'step', 'times']

export class ComparisonView {
  /** comparison: see comparison.mjs. Its `onChange` must call this view's `draw`. */
  constructor(comparison) {
    this.comparison = comparison
    const attributes = { type: 'button', class: 'paralleldit-small', 'data-testid': 'paralleldit-compare' }
    this.button = element('button', { ...attributes, title: t('panel.compare.help') }, t('panel.compare.start'))
    this.button.addEventListener('click', () => comparison.run(this.group, t('panel.compare.noLoader')))
    this.problem = element('p', { class: 'paralleldit-notice paralleldit-bad', role: 'alert' })
    this.body = element('tbody')
    const heads = COLUMNS.map((column) => element('th', { scope: 'col' }, t(`panel.compare.${column}`)))
    heads[COLUMNS.indexOf('seconds')].title = t('panel.compare.ofAll')
    const table = { class: 'paralleldit-table', 'data-testid': 'paralleldit-comparison' }
    this.table = element('table', table, element('thead', {}, element('tr', {}, ...heads)), this.body)
    setAttribute(this.table, 'aria-label', t('panel.compare.start'))
    this.element = element('div', {}, this.problem, this.table)
    this.draw()
  }

  /** group: the worker group's number. */
  update(group) {
    this.group = group
  }

  draw() {
    const { isRunning, problem, rows } = this.comparison
    setAttribute(this.button, 'aria-busy', isRunning ? 'true' : null)
    this.button.disabled = isRunning
    setText(this.problem, problem)
    setShown(this.problem, problem)
    setShown(this.table, rows.length)
    this.body.replaceChildren(...rows.map(makeRow))
  }
}

function makeRow({ plans, isAlone, state, result, times: factor }) {
  const name = isAlone ? t('panel.compare.alone') : describePlans(result?.plans ?? plans, t)
  const cells = [
    state === 'done' ? formatSeconds(result.seconds) : t(`panel.compare.state.${state}`),
    state === 'done' && result.step !== null ? formatSeconds(result.step) : '',
    factor ? `×${formatSpeedup(factor)}` : ''
  ]
  const head = element('th', { scope: 'row' }, name)
  return element('tr', { 'data-state': state }, head, ...cells.map((words) => element('td', {}, words)))
}
