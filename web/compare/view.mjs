// The button that compares plans, and the table of what each of them took.

import { element } from '../elements.mjs'
import { attribute, shown, text } from '../panel/dom.mjs'
import { plansWords, seconds, times } from '../panel/format.mjs'
import { LOADERS } from '../plan/graph.mjs'
import { t } from '../text.mjs'
import { Comparison } from './comparison.mjs'
import { pageOf } from './page.mjs'
import { Queue } from './queue.mjs'

/** Of the open workflow. app, api: the editor's. */
export function comparisonView(app, api) {
  const comparison = new Comparison(new Queue(api), pageOf(app, api), LOADERS, () => view.draw())
  const view = new ComparisonView(comparison)
  return view
}

const COLUMNS = ['plan', 'seconds', 'step', 'times']

export class ComparisonView {
  /** comparison: see comparison.mjs; whoever makes it has its changes call `draw`. */
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
    attribute(this.table, 'aria-label', t('panel.compare.start'))
    this.element = element('div', {}, this.problem, this.table)
    this.draw()
  }

  /** group: the number of the worker group. */
  update(group) {
    this.group = group
  }

  draw() {
    const { isRunning, problem, rows } = this.comparison
    attribute(this.button, 'aria-busy', isRunning ? 'true' : null)
    this.button.disabled = isRunning
    text(this.problem, problem)
    shown(this.problem, problem)
    shown(this.table, rows.length)
    this.body.replaceChildren(...rows.map(line))
  }
}

function line({ plans, isAlone, state, taken, times: factor }) {
  const name = isAlone ? t('panel.compare.alone') : plansWords(taken?.plans ?? plans, t)
  const cells = [
    state === 'done' ? seconds(taken.seconds) : t(`panel.compare.state.${state}`),
    state === 'done' && taken.step !== null ? seconds(taken.step) : '',
    factor ? `×${times(factor)}` : ''
  ]
  const head = element('th', { scope: 'row' }, name)
  return element('tr', { 'data-state': state }, head, ...cells.map((words) => element('td', {}, words)))
}
