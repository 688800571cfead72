// Shows the last runs, newest first: the model, the time of a step, and the outcome.

import { element } from '../elements.mjs'
import { describeSpeed } from '../figures/speed.mjs'
import { getLanguage, t, translateSaid } from '../text.mjs'
import { Children, makeFold, setAttribute, setShown, setText } from './dom.mjs'
import {
  computeShare,
  describePlans,
  formatDateAndTime,
  formatPercent,
  formatSeconds,
  formatTime,
  getFileName
} from './format.mjs'
import { getState } from './state.mjs'
import { Timeline } from './timeline.mjs'

const LONG_START = 1 // seconds; a shorter one is not told
const LAST = 3 // runs to show before a person asks for all
const OUTCOMES = {
  running: 'pi pi-play',
  done: 'pi pi-check',
  cancelled: 'pi pi-ban',
  failed: 'pi pi-times'
}

export class RunList {
  /** onTrace: called with the group's number to save its ranks' timeline. comparison: see ComparisonView. */
  constructor(onTrace, comparison) {
    this.comparison = comparison
    const keys = ['compute', 'communication'].map((part) =>
      element('span', { class: `paralleldit-key paralleldit-${part}` }, t(`panel.${part}`))
    )
    this.list = element('ol', { class: 'paralleldit-runs' })
    this.trace = element('button', { type: 'button', class: 'paralleldit-small' }, t('panel.trace'))
    setAttribute(this.trace, 'data-testid', 'paralleldit-trace')
    setAttribute(this.trace, 'title', t('panel.help.trace'))
    this.trace.addEventListener('click', () => onTrace(this.number))
    this.all = element('button', { type: 'button', class: 'paralleldit-small', 'data-testid': 'paralleldit-runs-all' })
    this.showsAll = false
    this.all.addEventListener('click', () => {
      this.showsAll = !this.showsAll
      this.update(this.group)
    })
    const legend = element('div', { class: 'paralleldit-legend' }, ...keys, this.all, this.trace, comparison.button)
    const folded = makeFold(t('panel.runs'), true, this.list, legend, comparison.element)
    this.element = folded.element
    this.rows = new Children(
      this.list,
      ({ id }) => id,
      () => new RunRow()
    )
  }

  update(group) {
    Object.assign(this, { group, number: group.number })
    this.comparison.update(group.number)
    setShown(this.element, group.runs.length)
    setShown(this.trace, ['ready', 'parked'].includes(getState(group)))
    setShown(this.all, group.runs.length > LAST)
    setText(this.all, this.showsAll ? t('panel.runsLast') : t('panel.runsAll', { count: group.runs.length }))
    const shown = this.showsAll ? group.runs : group.runs.slice(0, LAST)
    this.rows.update(shown.map((run) => ({ run, id: run.id, isNamed: run.model !== group.status.name })))
  }
}

class RunRow {
  constructor() {
    this.model = element('span', { class: 'paralleldit-strong paralleldit-cut-off' })
    this.icon = element('i', { 'aria-hidden': 'true' })
    this.word = element('span')
    this.outcome = element('span', { class: 'paralleldit-outcome' }, this.icon, this.word)
    this.about = element('p', { class: 'paralleldit-quiet' })
    this.reason = element('p', { class: 'paralleldit-quiet', 'data-testid': 'paralleldit-reason' })
    this.numbers = element('span')
    this.factor = element('p', { class: 'paralleldit-factor', 'data-testid': 'paralleldit-factor' })
    this.share = element('span', { class: 'paralleldit-key paralleldit-communication' })
    this.timeline = new Timeline(t)
    const line = element('div', { class: 'paralleldit-line' }, this.model, this.outcome)
    this.element = element('li', { 'data-testid': 'paralleldit-run' }, line, this.about, this.reason)
    const counted = element('p', { class: 'paralleldit-numbers' }, this.numbers, this.share)
    this.element.append(this.factor, this.timeline.element, counted)
  }

  /** isNamed: whether the run names its model, as one that is not the loaded model. */
  update({ run, isNamed }) {
    if (this.run === run && this.isNamed === isNamed) return
    Object.assign(this, { run, isNamed })
    setAttribute(this.element, 'data-state', run.state)
    const how = run.is_stock ? t('panel.asStock') : describePlans(run.plans, t)
    setText(this.model, isNamed ? getFileName(run.model) : how)
    setAttribute(this.model, 'title', [...new Set([run.model, run.model_class])].filter(Boolean).join(' · '))
    setAttribute(this.icon, 'class', OUTCOMES[run.state] ?? '')
    setText(this.word, t(`panel.outcome.${run.state}`))
    const began = new Date(run.began * 1000)
    const time = formatTime(began, getLanguage())
    setText(this.about, [t(`panel.operation.${run.operation}`), isNamed && how, time].filter(Boolean).join(' · '))
    setText(this.reason, translateSaid(run.reason))
    setShown(this.reason, run.reason)
    setAttribute(this.about, 'title', describeNode(run, began))
    this.showNumbers(run)
  }

  showNumbers(run) {
    const numbers = [countSteps(run)]
    const key = run.is_measured ? 'panel.predicted' : 'panel.predicted_assumed'
    if (run.predicted) numbers.push(t(key, { seconds: formatSeconds(run.predicted) }))
    if (run.seconds) numbers.push(t('panel.inAll', { seconds: formatSeconds(run.seconds) }))
    if (run.startup > LONG_START) numbers.push(t('panel.startup', { seconds: formatSeconds(run.startup) }))
    setText(this.numbers, numbers.join(' · '))
    const factor = describeStep(run)
    setText(this.factor, factor)
    setShown(this.factor, factor)
    setShown(this.timeline.element, run.steps.length)
    setShown(this.share, run.steps.length)
    if (!run.steps.length) return
    const percent = formatPercent(computeShare(run.steps))
    const share = t('panel.share', { share: percent })
    setText(this.share, percent)
    setAttribute(this.share, 'title', share)
    setAttribute(this.share, 'aria-hidden', 'true') // the drawing's label says it
    const label = t('panel.timeline', { numbers: [...numbers, share].join(' · '), slowest: findSlowest(run) })
    this.timeline.update(run, label)
  }
}

function describeNode(run, began) {
  const date = formatDateAndTime(began, getLanguage())
  return run.node ? `${t('panel.node', { node: run.node })} · ${date}` : date
}

function countSteps({ at, made, total }) {
  const done = total ? at : made
  if (done === 1 && (total ?? 1) === 1) return t('panel.oneStep')
  return !total || done === total ? t('panel.steps', { made: done }) : t('panel.stepsOf', { made: done, total })
}

/** Describes a usual step, and how many times as fast as on one device it was; '' before there is one. */
function describeStep({ usual: seconds, alone, is_alone_run: isAloneRun }) {
  return seconds ? describeSpeed({ seconds, alone, isRun: true, isAloneRun }, t) : ''
}

const findSlowest = (run) => formatSeconds(Math.max(...run.steps.map(([length]) => length)))
