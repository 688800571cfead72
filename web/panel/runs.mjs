// The last runs, newest first: what was run, how long a step took, and what became of it.

import { element } from '../elements.mjs'
import { language, t } from '../text.mjs'
import { attribute, Children, fold, shown, text } from './dom.mjs'
import {
  bytes,
  clock,
  dateAndClock,
  fileName,
  percent,
  plansWords,
  seconds,
  summary,
  times,
  timesOfOne
} from './format.mjs'
import { stateOf } from './state.mjs'
import { Timeline } from './timeline.mjs'

const OUTCOMES = {
  running: 'pi pi-play',
  done: 'pi pi-check',
  cancelled: 'pi pi-ban',
  failed: 'pi pi-times'
}

export class RunList {
  /** onTrace: called with the group's number where its ranks' timeline is wanted. comparison: see ComparisonView. */
  constructor(onTrace, comparison) {
    this.comparison = comparison
    const keys = ['compute', 'communication'].map((part) =>
      element('span', { class: `paralleldit-key paralleldit-${part}` }, t(`panel.${part}`))
    )
    this.list = element('ol', { class: 'paralleldit-runs' })
    this.trace = element('button', { type: 'button', class: 'paralleldit-small' }, t('panel.trace'))
    attribute(this.trace, 'data-testid', 'paralleldit-trace')
    attribute(this.trace, 'title', t('panel.help.trace'))
    this.trace.addEventListener('click', () => onTrace(this.number))
    const legend = element('div', { class: 'paralleldit-legend' }, ...keys, this.trace, comparison.button)
    const folded = fold(t('panel.runs'), true, legend, comparison.element, this.list)
    this.element = folded.element
    this.rows = new Children(
      this.list,
      ({ id }) => id,
      () => new RunRow()
    )
  }

  update(group) {
    this.number = group.number
    this.comparison.update(group.number)
    shown(this.element, group.runs.length)
    shown(this.trace, ['ready', 'parked'].includes(stateOf(group)))
    this.rows.update(group.runs)
  }
}

class RunRow {
  constructor() {
    this.model = element('span', { class: 'paralleldit-strong paralleldit-cut-off' })
    this.icon = element('i', { 'aria-hidden': 'true' })
    this.word = element('span')
    this.outcome = element('span', { class: 'paralleldit-outcome' }, this.icon, this.word)
    this.about = element('p', { class: 'paralleldit-quiet' })
    this.numbers = element('span')
    this.factor = element('p', { class: 'paralleldit-factor', 'data-testid': 'paralleldit-factor' })
    this.share = element('span', { class: 'paralleldit-key paralleldit-communication' })
    this.timeline = new Timeline(t, { seconds })
    const line = element('div', { class: 'paralleldit-line' }, this.model, this.outcome)
    this.element = element('li', { 'data-testid': 'paralleldit-run' }, line, this.about)
    const counted = element('p', { class: 'paralleldit-numbers' }, this.numbers, this.share)
    this.element.append(this.factor, this.timeline.element, counted)
  }

  update(run) {
    if (this.run === run) return
    this.run = run
    attribute(this.element, 'data-state', run.state)
    text(this.model, fileName(run.model))
    attribute(this.model, 'title', [...new Set([run.model, run.model_class])].filter(Boolean).join(' · '))
    attribute(this.icon, 'class', OUTCOMES[run.state] ?? '')
    text(this.word, t(`panel.outcome.${run.state}`))
    const began = new Date(run.began * 1000)
    const time = clock(began, language())
    text(this.about, [t(`panel.operation.${run.operation}`), plansWords(run.plans, t), time].join(' · '))
    attribute(this.about, 'title', aboutNode(run, began))
    this.count(run, summary(run.steps))
  }

  /** known: the summary of the run's steps, null if there are none. */
  count(run, known) {
    const numbers = [stepWords(run)]
    if (known) numbers.push(t('panel.pace', { seconds: seconds(known.median) }))
    const told = run.is_measured ? 'panel.predicted' : 'panel.predicted_assumed'
    if (run.predicted) numbers.push(t(told, { seconds: seconds(run.predicted) }))
    if (run.seconds) numbers.push(t('panel.inAll', { seconds: seconds(run.seconds) }))
    if (run.residuals) numbers.push(t('panel.residuals', { size: bytes(run.residuals) }))
    text(this.numbers, numbers.join(' · '))
    const factor = factorWords(run)
    text(this.factor, factor)
    shown(this.factor, factor)
    shown(this.timeline.element, known)
    shown(this.share, known)
    if (!known) return
    const share = t('panel.share', { share: percent(known.share) })
    text(this.share, percent(known.share))
    attribute(this.share, 'title', share)
    attribute(this.share, 'aria-hidden', 'true') // the drawing says it in words
    const label = t('panel.timeline', { numbers: [...numbers, share].join(' · '), slowest: slowest(run) })
    this.timeline.update(run, label)
  }
}

function aboutNode(run, began) {
  const date = dateAndClock(began, language())
  return run.node ? `${t('panel.node', { node: run.node })} · ${date}` : date
}

function stepWords({ at, made, total }) {
  const done = total ? at : made
  if (done === 1 && (total ?? 1) === 1) return t('panel.oneStep')
  return !total || done === total ? t('panel.steps', { made: done }) : t('panel.stepsOf', { made: done, total })
}

/** "×1.8 of one device", and by what that is known; nothing where it is not. */
function factorWords(run) {
  const factor = timesOfOne(run)
  if (!factor) return ''
  const by = run.is_alone_run ? 'timesMeasured' : run.is_measured ? 'timesPredicted' : 'timesAssumed'
  return t(`panel.${by}`, { times: times(factor), seconds: seconds(run.alone) })
}

const slowest = (run) => seconds(Math.max(...run.steps.map(([length]) => length)))
