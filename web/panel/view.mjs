// The whole panel: its heading, a notice about the connection, and the groups, those of the open workflow first.

import { element } from '../elements.mjs'
import { t } from '../text.mjs'
import { Children, setAttribute, setShown, setText } from './dom.mjs'
import { GroupView } from './group.mjs'

export class PanelView {
  /**
   * actions: see actions.mjs. readLog: called with a group's number and a rank. retry: asks the server again.
   * makeComparison: makes a ComparisonView. findNextRuns: returns what is known about next runs, by group number.
   */
  constructor(actions, readLog, retry, makeComparison, findNextRuns) {
    this.findNextRuns = findNextRuns
    this.problem = element('p')
    this.retry = element('button', { type: 'button', class: 'paralleldit-button' }, t('panel.retry'))
    this.retry.addEventListener('click', retry)
    const attributes = { class: 'paralleldit-notice paralleldit-bad', role: 'alert' }
    this.notice = element('div', attributes, this.problem, this.retry)
    this.waiting = element('p', { class: 'paralleldit-quiet paralleldit-waiting' }, t('panel.waiting'))
    this.groups = element('div', { class: 'paralleldit-groups' })
    this.views = new Children(
      this.groups,
      ({ group }) => group.number,
      ({ group }) => new GroupView(group.number, actions, readLog, makeComparison())
    )
    const head = element('header', { class: 'paralleldit-head' }, element('h2', {}, t('panel.title')))
    this.element = element('section', { class: 'paralleldit-panel', 'data-testid': 'paralleldit-panel' })
    setAttribute(this.element, 'aria-label', t('panel.title'))
    this.element.append(head, this.notice, this.waiting, this.groups)
  }

  update(model) {
    setText(this.problem, model.connected ? model.problem : t('panel.disconnected'))
    setShown(this.notice, model.problem || !model.connected)
    setShown(this.retry, model.connected)
    setShown(this.waiting, !model.loaded && !model.problem)
    const many = model.groups.length > 1
    const { device, devices } = model
    const next = this.findNextRuns()
    const isOpen = ({ number }) => next.has(number)
    const groups = [...model.groups.filter(isOpen), ...model.groups.filter((group) => !isOpen(group))]
    this.views.update(groups.map((group) => ({ group, many, device, devices, runs: next.get(group.number) ?? [] })))
  }
}
