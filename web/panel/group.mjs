// The view of one worker group: its state, buttons, running job, and the folding parts below.

import { element } from '../elements.mjs'
import { formatReport, splitFields } from '../errors/message.mjs'
import { describeRemark } from '../plan/mesh.mjs'
import { NextView } from '../plan/next.mjs'
import { countOffered, makeUseAllButton } from '../settings/cards.mjs'
import { t, translateFields, translateSaid } from '../text.mjs'
import { makeId, setAttribute, setShown, setText } from './dom.mjs'
import { countRanks, describePlan, formatPercent, formatSeconds, getFileName } from './format.mjs'
import { LogView } from './logs.mjs'
import { RankList } from './ranks.mjs'
import { RunList } from './runs.mjs'
import { findRunning, getReadPercent, getState, getStep, isDismissible, isRemovable, listActions } from './state.mjs'
import { describeWeights } from './weights.mjs'

// No icon spins: an endless animation makes the browser draw the page sixty times a second.
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
const KNOWN_OPERATIONS = ['load', 'patch', 'call', 'sample', 'vae', 'park', 'trim', 'unload', 'trace', 'measure']
const OF_STEPS = ['call', 'sample']

export class GroupView {
  /** actions: see actions.mjs. readLog: reads a rank's log. comparison: a ComparisonView. */
  constructor(number, actions, readLog, comparison) {
    this.number = number
    this.actions = actions
    this.heading = element('h3', { id: makeId('group') }, t('panel.group', { number }))
    const press = (action) => this.press(action)
    const head = [new StateView(), new ButtonRow(press), new JobView()]
    const rest = [
      new AboutView(press),
      new ModelView(),
      new RankList(),
      new NextView(),
      new RunList((number) => actions.saveTrace(number), comparison),
      new LogView(readLog)
    ]
    this.parts = [...head, ...rest]
    const attributes = { class: 'paralleldit-group', 'data-group': number, 'aria-labelledby': this.heading.id }
    // The head stays in sight while its group scrolls.
    const top = element('header', { class: 'paralleldit-top', 'data-testid': 'paralleldit-top' }, this.heading)
    top.append(...head.map((part) => part.element))
    this.element = element('section', attributes, top, ...rest.map((part) => part.element))
  }

  update({ group, many, device, devices, runs }) {
    this.group = group
    setAttribute(this.heading, 'class', many ? 'paralleldit-group-name' : 'paralleldit-unseen')
    const pending = (action) => this.actions.isPending(action, this.number)
    for (const part of this.parts) part.update(group, { device, devices, pending, runs })
  }

  press(action) {
    this.actions.run(action, this.number, getState(this.group) === 'busy')
  }
}

/** The group's state. */
class StateView {
  constructor() {
    this.icon = element('i', { 'aria-hidden': 'true' })
    this.word = element('span', { role: 'status', 'data-testid': 'paralleldit-state', class: 'paralleldit-state-word' })
    this.size = element('span', { class: 'paralleldit-aside' })
    this.element = element('div', { class: 'paralleldit-state' }, this.icon, this.word, this.size)
  }

  update(group, { device, devices }) {
    const state = getState(group)
    setAttribute(this.element, 'data-state', state)
    setAttribute(this.icon, 'class', ICONS[state] ?? ICONS.stopped)
    setText(this.word, describeState(group, state))
    const count = group.status.pids?.length ?? devices
    setText(this.size, count ? t(`panel.size.${group.status.device ?? device}`, { count }) : '')
  }
}

/** What the state means, how often the group died and why, and the warnings about its plan. */
class AboutView {
  constructor(press) {
    this.hint = element('p', { class: 'paralleldit-quiet' })
    this.words = element('span')
    this.offer = element('span')
    const notice = { class: 'paralleldit-notice paralleldit-warning', 'data-testid': 'paralleldit-note' }
    this.note = element('p', notice, this.words, this.offer)
    this.offered = 0
    this.deaths = element('summary')
    this.death = element('pre', { class: 'paralleldit-death', tabindex: 0 })
    const attributes = { class: 'paralleldit-why', 'data-testid': 'paralleldit-death' }
    this.dismiss = element('button', { type: 'button', class: 'paralleldit-small' }, t('errors.dismiss'))
    setAttribute(this.dismiss, 'data-testid', 'paralleldit-dismiss')
    this.dismiss.addEventListener('click', () => press('dismiss'))
    const removing = { type: 'button', class: 'paralleldit-small', 'data-testid': 'paralleldit-remove' }
    this.remove = element('button', { ...removing, title: t('panel.help.remove') }, t('panel.remove'))
    this.remove.addEventListener('click', () => press('remove'))
    const why = element('details', attributes, this.deaths, this.death)
    this.why = element('div', { class: 'paralleldit-over' }, why, this.dismiss)
    this.element = element('div', { class: 'paralleldit-about' }, this.hint, this.remove, this.note, this.why)
  }

  update(group, { device }) {
    const state = getState(group)
    const { remarks, deaths, last_death: death } = group.status
    const isNew = state === 'stopped' && !group.runs.length && !death
    const isOnCpu = state === 'parked' && (group.status.device ?? device) === 'cpu'
    const hint = t(isNew ? 'panel.newcomer' : isOnCpu ? 'panel.hint.parkedCpu' : `panel.hint.${state}`)
    const hints = [hint.startsWith('panel.') ? '' : hint, group.status.outdated ? t('panel.hint.outdated') : '']
    setText(this.hint, hints.filter(Boolean).join(' '))
    setShown(this.hint, this.hint.textContent)
    const warnings = (remarks ?? []).filter(({ is_warning: isWarning }) => isWarning)
    const note = warnings.map((remark) => describeRemark(remark, t)).join(' ')
    setText(this.words, note)
    const offered = Math.max(0, ...warnings.map(countOffered))
    if (offered !== this.offered) this.offer.replaceChildren(...(offered ? [makeUseAllButton(offered)] : []))
    this.offered = offered
    setShown(this.note, note)
    setText(this.deaths, describeDeaths(deaths))
    setText(this.death, death ? formatReport('', translateFields(splitFields(death))) : '')
    setShown(this.why, death)
    setShown(this.remove, isRemovable(group))
    setShown(this.element, this.hint.textContent || note || death || !this.remove.hidden)
    setShown(this.dismiss, isDismissible(group))
  }
}

/** The buttons start, stop, restart and park. One of no use now is marked as disabled, but keeps the focus. */
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
    const possible = listActions(group)
    for (const { action, button } of this.buttons) {
      setAttribute(button, 'aria-disabled', !possible[action] || pending(action))
      setAttribute(button, 'aria-busy', pending(action) ? 'true' : null)
      const onCpu = action === 'park' && (group.status.device ?? device) === 'cpu'
      setAttribute(button, 'title', t(onCpu ? 'panel.help.parkCpu' : `panel.help.${action}`))
    }
  }
}

/** The running operation and its progress. */
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
    const operation = current ?? findRunning(group)?.operation
    setShown(this.element, getState(group) === 'busy')
    if (this.element.hidden) return
    setText(this.operation, describeOperation(operation))
    const isLoading = current === 'load'
    const done = isLoading ? getWeightsRead(group.status) : getStep(group)
    const words = done ? describeProgress(done, isLoading) : ''
    setText(this.count, words)
    setShown(this.bar, done?.of)
    if (done?.of) {
      setAttribute(this.bar, 'aria-label', describeOperation(operation))
      setAttribute(this.bar, 'aria-valuemax', done.of)
      setAttribute(this.bar, 'aria-valuenow', done.at)
      setAttribute(this.bar, 'aria-valuetext', words)
      setAttribute(this.fill, 'style', `width: ${((100 * done.at) / done.of).toFixed(1)}%`)
    }
    setText(this.pace, done && !isLoading ? describePace(findRunning(group)) : '')
    setShown(this.pace, this.pace.textContent)
  }
}

/** The loaded model: its plan, and where its weights are kept. Its class and files are its name's tooltip. */
class ModelView {
  constructor() {
    this.name = element('p', { class: 'paralleldit-strong paralleldit-cut-off' })
    this.plan = element('p', { class: 'paralleldit-quiet' })
    this.weights = element('div', { 'data-testid': 'paralleldit-weights' })
    const attributes = {
      class: 'paralleldit-model',
      'data-testid': 'paralleldit-model',
      'aria-label': t('panel.model')
    }
    this.element = element('section', attributes, this.name, this.plan, this.weights)
  }

  update(group) {
    const { model, name, plan, beside, files = [] } = group.status
    setShown(this.element, model)
    if (!model) return
    setText(this.name, getFileName(name || model))
    setAttribute(this.name, 'title', [...new Set([name || model, model, ...files])].join('\n'))
    setText(this.plan, plan ? describePlanInUse(plan, group.status.pids?.length ?? 0) : '')
    const words = [...describeWeights(group, t), ...(beside ? [translateSaid(beside)] : [])]
    setShown(this.weights, words.length)
    if (this.words !== words.join('\n')) {
      this.words = words.join('\n')
      const [where, ...more] = words.map((line) => element('p', {}, line))
      for (const line of more) line.className = 'paralleldit-quiet'
      this.weights.replaceChildren(where, ...more)
    }
  }
}

function describeState({ status: { operation, starting } }, state) {
  if (state === 'cancelling' && !OF_STEPS.includes(operation)) return t('panel.state.cancellingOther')
  if (state === 'starting' && starting) return t('waiting.starting', { seconds: formatSeconds(Math.ceil(starting)) })
  return t(`panel.state.${state}`)
}

/** Returns the progress of loading, in the form of `getStep`: hundredths of the weights. */
function getWeightsRead(status) {
  const at = getReadPercent(status)
  return at === null ? null : { at, of: 100 }
}

function describeProgress({ at, of }, isLoading) {
  if (isLoading) return formatPercent(at / of)
  return t(of ? 'panel.step' : 'panel.stepOpen', { at, of })
}

const describeOperation = (operation) =>
  KNOWN_OPERATIONS.includes(operation) ? t(`panel.operation.${operation}`) : (operation ?? t('panel.state.busy'))

function describePlanInUse(plan, count) {
  const line = t('panel.plan', { plan: describePlan(plan, t) })
  const used = countRanks(plan)
  return used < count ? `${line} · ${t('panel.part', { used, count })}` : line
}

function describeDeaths(count) {
  if (!count) return t('panel.lastDeath')
  return count === 1 ? t('panel.diedOnce') : t('panel.died', { count })
}

function describePace(run) {
  if (!run?.usual) return ''
  const pace = t('plan.speed.step', { seconds: formatSeconds(run.usual) })
  return run.left ? `${pace} · ${t('panel.left', { seconds: formatSeconds(Math.ceil(run.left)) })}` : pace
}
