// The whole panel: its head, what is wrong with the connection, and the groups.

import { element } from '../elements.mjs'
import { t } from '../text.mjs'
import { attribute, Children, shown, text } from './dom.mjs'
import { GroupView } from './group.mjs'

export class PanelView {
  /**
   * actions: see actions.mjs. openLog: called with a group's number and a rank. retry: asks the server again. compare:
   * makes a ComparisonView. nextRuns: what is known of each group's next run, by its number.
   */
  constructor(actions, openLog, retry, compare, nextRuns) {
    this.nextRuns = nextRuns
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
      ({ group }) => new GroupView(group.number, actions, openLog, compare())
    )
    const head = element('header', { class: 'paralleldit-head' }, element('h2', {}, t('panel.title')))
    this.element = element('section', { class: 'paralleldit-panel', 'data-testid': 'paralleldit-panel' })
    attribute(this.element, 'aria-label', t('panel.title'))
    this.element.append(head, this.notice, this.waiting, this.groups)
  }

  update(model) {
    text(this.problem, model.connected ? model.problem : t('panel.disconnected'))
    shown(this.notice, model.problem || !model.connected)
    shown(this.retry, model.connected)
    shown(this.waiting, !model.loaded && !model.problem)
    const many = model.groups.length > 1
    const { device, devices } = model
    const next = this.nextRuns()
    this.views.update(
      model.groups.map((group) => ({ group, many, device, devices, runs: next.get(group.number) ?? [] }))
    )
  }
}
