// One worker group: its state and why, the buttons, the job that runs, and the parts below them.

import { element } from '../elements.mjs'
import { remarkWords } from '../plan/mesh.mjs'
import { NextView } from '../plan/next.mjs'
import { t } from '../text.mjs'
import { attribute, fold, shown, text, uniqueId } from './dom.mjs'
import { fileName, percent, planWords, ranksOfPlan, roughSeconds, seconds, secondsLeft, summary } from './format.mjs'
import { LogView } from './logs.mjs'
import { RankList } from './ranks.mjs'
import { RunList } from './runs.mjs'
import { actionsOf, isDismissible, readOf, runningOf, stateOf, stepOf } from './state.mjs'
import { weightsWords } from './weights.mjs'

// None of them turns: an endless animation has the browser draw the page anew sixty times a second.
const ICONS = {
  stopped: 'pi pi-circle',
  starting: 'pi pi-hourglass',
  ready: 'pi pi-check-circle',
  busy: 'pi pi-play-circle',
  cancelling: 'pi pi-ban',
  parked: 'pi pi-moon',
  restarting: 'pi pi-hourglass',
  failed: 'pi pi-exclamation-triangle'
}
const BUTTONS = { start: 'pi pi-play', stop: 'pi pi-stop', restart: 'pi pi-refresh', park: 'pi pi-moon' }
const KNOWN_OPERATIONS = [
  'load',
  'adapt',
  'patch',
  'call',
  'part',
  'sample',
  'forward',
  'vae',
  'park',
  'trim',
  'unload',
  'trace',
  'measure'
]
const OF_STEPS = ['call', 'sample', 'forward']

export class GroupView {
  /** actions: see actions.mjs. openLog: called with a rank whose log is wanted. comparison: a ComparisonView. */
  constructor(number, actions, openLog, comparison) {
    this.number = number
    this.actions = actions
    this.heading = element('h3', { id: uniqueId('group') }, t('panel.group', { number }))
    const press = (action) => this.press(action)
    this.parts = [new StateView(press), new ButtonRow(press), new JobView()]
    this.folds = [
      new NextView(),
      new ModelView(),
      new RankList(),
      new LogView(openLog),
      new RunList((number) => actions.trace(number), comparison)
    ]
    const attributes = { class: 'paralleldit-group', 'data-group': number, 'aria-labelledby': this.heading.id }
    this.element = element('section', attributes, this.heading)
    this.element.append(...[...this.parts, ...this.folds].map((part) => part.element))
  }

  update({ group, many, device, devices, runs }) {
    this.group = group
    attribute(this.heading, 'class', many ? 'paralleldit-group-name' : 'paralleldit-unseen')
    const pending = (action) => this.actions.isPending(action, this.number)
    for (const part of [...this.parts, ...this.folds]) part.update(group, { device, devices, pending, runs })
  }

  press(action) {
    this.actions.run(action, this.number, stateOf(this.group) === 'busy')
  }
}

/** The state in words, what it means, how often the group died and why, and what is to be said of its plan. */
class StateView {
  constructor(press) {
    this.icon = element('i', { 'aria-hidden': 'true' })
    this.word = element('span', { role: 'status', 'data-testid': 'paralleldit-state', class: 'paralleldit-state-word' })
    this.size = element('span', { class: 'paralleldit-aside' })
    this.hint = element('p', { class: 'paralleldit-quiet' })
    this.note = element('p', { class: 'paralleldit-notice', 'data-testid': 'paralleldit-note' })
    this.deaths = element('summary')
    this.death = element('pre', { class: 'paralleldit-death', tabindex: 0 })
    const attributes = { class: 'paralleldit-why', 'data-testid': 'paralleldit-death' }
    this.dismiss = element('button', { type: 'button', class: 'paralleldit-small' }, t('errors.dismiss'))
    attribute(this.dismiss, 'data-testid', 'paralleldit-dismiss')
    this.dismiss.addEventListener('click', () => press('dismiss'))
    const why = element('details', attributes, this.deaths, this.death)
    this.why = element('div', { class: 'paralleldit-over' }, why, this.dismiss)
    const line = element('div', { class: 'paralleldit-state' }, this.icon, this.word, this.size)
    this.element = element('div', { class: 'paralleldit-about' }, line, this.hint, this.note, this.why)
  }

  update(group, { device, devices }) {
    const state = stateOf(group)
    const { remarks, deaths, last_death: death, pids } = group.status
    attribute(this.element, 'data-state', state)
    attribute(this.icon, 'class', ICONS[state] ?? ICONS.stopped)
    text(this.word, stateWords(group, state))
    const count = pids?.length ?? devices
    text(this.size, count ? t(`panel.size.${group.status.device ?? device}`, { count }) : '')
    const isNew = state === 'stopped' && !group.runs.length && !death
    const hint = t(isNew ? 'panel.newcomer' : `panel.hint.${state}`)
    text(this.hint, hint.startsWith('panel.') ? '' : hint)
    shown(this.hint, this.hint.textContent)
    const note = (remarks ?? []).map((remark) => remarkWords(remark, t)).join(' ')
    text(this.note, note)
    shown(this.note, note)
    text(this.deaths, deathWords(deaths))
    text(this.death, death ?? '')
    shown(this.why, death)
    shown(this.dismiss, isDismissible(group))
  }
}

/** Start, stop, restart, park. One that makes no sense is marked as disabled, and keeps the focus if it has it. */
class ButtonRow {
  constructor(press) {
    this.element = element('div', { class: 'paralleldit-buttons', role: 'group', 'aria-label': t('panel.buttons') })
    this.buttons = Object.entries(BUTTONS).map(([action, icon]) => {
      const label = element('span', {}, t(`panel.action.${action}`))
      const attributes = { type: 'button', class: 'paralleldit-button', 'data-testid': `paralleldit-${action}` }
      const button = element('button', attributes, element('i', { class: icon, 'aria-hidden': 'true' }), label)
      button.addEventListener('click', () => {
        if (button.getAttribute('aria-disabled') !== 'true') press(action)
      })
      this.element.append(button)
      return { action, button }
    })
  }

  update(group, { device, pending }) {
    const possible = actionsOf(group)
    for (const { action, button } of this.buttons) {
      attribute(button, 'aria-disabled', !possible[action] || pending(action))
      attribute(button, 'aria-busy', pending(action) ? 'true' : null)
      const onCpu = action === 'park' && (group.status.device ?? device) === 'cpu'
      attribute(button, 'title', t(onCpu ? 'panel.help.parkCpu' : `panel.help.${action}`))
    }
  }
}

/** The operation that runs, and how far it is. */
class JobView {
  constructor() {
    this.operation = element('span', { class: 'paralleldit-strong' })
    this.count = element('span', { class: 'paralleldit-aside' })
    this.fill = element('div')
    this.bar = element('div', { class: 'paralleldit-bar', role: 'progressbar', 'aria-valuemin': 0 }, this.fill)
    this.pace = element('p', { class: 'paralleldit-quiet' })
    const line = element('div', { class: 'paralleldit-line' }, this.operation, this.count)
    const attributes = { class: 'paralleldit-job', 'data-testid': 'paralleldit-step' }
    this.element = element('div', attributes, line, this.bar, this.pace)
  }

  update(group) {
    const { operation: current } = group.status
    const operation = current ?? runningOf(group)?.operation
    shown(this.element, stateOf(group) === 'busy')
    if (this.element.hidden) return
    text(this.operation, operationWords(operation))
    const isLoading = current === 'load'
    const done = isLoading ? weightsDone(group.status) : stepOf(group)
    const words = done ? doneWords(done, isLoading) : ''
    text(this.count, words)
    shown(this.bar, done?.of)
    if (done?.of) {
      attribute(this.bar, 'aria-label', operationWords(operation))
      attribute(this.bar, 'aria-valuemax', done.of)
      attribute(this.bar, 'aria-valuenow', done.at)
      attribute(this.bar, 'aria-valuetext', words)
      attribute(this.fill, 'style', `width: ${((100 * done.at) / done.of).toFixed(1)}%`)
    }
    text(this.pace, done && !isLoading ? paceWords(runningOf(group)) : '')
    shown(this.pace, this.pace.textContent)
  }
}

/** What is loaded, under which plan, where its weights wait, and from which files. */
class ModelView {
  constructor() {
    this.element = fold(t('panel.model'), true).element
    attribute(this.element, 'data-testid', 'paralleldit-model')
    this.name = element('p', { class: 'paralleldit-strong paralleldit-cut-off' })
    this.computes = element('p', { class: 'paralleldit-quiet paralleldit-cut-off' })
    this.plan = element('p')
    this.weights = element('div', { 'data-testid': 'paralleldit-weights' })
    this.files = element('ul', { class: 'paralleldit-files', 'aria-label': t('panel.files') })
    this.element.append(this.name, this.computes, this.plan, this.weights, this.files)
  }

  update(group) {
    const { model, name, plan, files = [] } = group.status
    shown(this.element, model)
    if (!model) return
    text(this.name, fileName(name || model))
    attribute(this.name, 'title', name || model)
    text(this.computes, model)
    shown(this.computes, name && name !== model)
    shown(this.files, files.length > 1 || files.some((path) => fileName(path) !== this.name.textContent))
    text(this.plan, plan ? planLine(plan, group.status.pids?.length ?? 0) : '')
    const words = weightsWords(group, t)
    shown(this.weights, words.length)
    if (this.words !== words.join('\n')) {
      this.words = words.join('\n')
      const [where, ...more] = words.map((line) => element('p', {}, line))
      for (const line of more) line.className = 'paralleldit-quiet'
      this.weights.replaceChildren(where, ...more)
    }
    if (this.paths === files.join('\n')) return
    this.paths = files.join('\n')
    this.files.replaceChildren(...files.map((path) => element('li', { title: path }, fileName(path))))
  }
}

function stateWords({ status: { operation, starting } }, state) {
  if (state === 'cancelling' && !OF_STEPS.includes(operation)) return t('panel.state.cancellingOther')
  if (state === 'starting' && starting) return t('waiting.starting', { seconds: roughSeconds(starting) })
  return t(`panel.state.${state}`)
}

/** Like `stepOf`, in hundredths of the weights. */
function weightsDone(status) {
  const at = readOf(status)
  return at === null ? null : { at, of: 100 }
}

function doneWords({ at, of }, isLoading) {
  if (isLoading) return percent(at / of)
  return t(of ? 'panel.step' : 'panel.stepOpen', { at, of })
}

const operationWords = (operation) =>
  KNOWN_OPERATIONS.includes(operation) ? t(`panel.operation.${operation}`) : (operation ?? t('panel.state.busy'))

function planLine(plan, count) {
  const line = t('panel.plan', { plan: planWords(plan, t) })
  const used = ranksOfPlan(plan)
  return used < count ? `${line} · ${t('panel.part', { used, count })}` : line
}

function deathWords(count) {
  if (!count) return t('panel.lastDeath')
  return count === 1 ? t('panel.diedOnce') : t('panel.died', { count })
}

function paceWords(run) {
  const known = run && summary(run.steps)
  if (!known) return ''
  const left = secondsLeft(run)
  const pace = t('panel.pace', { seconds: seconds(known.median) })
  return left ? `${pace} · ${t('panel.left', { seconds: roughSeconds(left) })}` : pace
}
