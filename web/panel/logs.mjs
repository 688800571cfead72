// The last lines of a rank's log, in a box that fits them: the panel itself is what scrolls.

import { copiesOnClick } from '../clipboard.mjs'
import { element } from '../elements.mjs'
import { t } from '../text.mjs'
import { attribute, fold, shown, text, uniqueId } from './dom.mjs'
import { hasLogs } from './state.mjs'

const LAST = 15 // lines that are seen unless all are wanted

export class LogView {
  /** openLog: called with the group's number and a rank whose log is wanted and not there. */
  constructor(openLog) {
    this.openLog = openLog
    this.rank = 0
    this.isWhole = false
    const id = uniqueId('log-rank')
    this.select = element('select', { id })
    const attributes = { class: 'paralleldit-log', tabindex: 0, role: 'region', 'data-testid': 'paralleldit-log' }
    this.lines = element('pre', attributes)
    this.nothing = element('p', { class: 'paralleldit-quiet' })
    this.whole = button('paralleldit-log-all', '')
    this.copy = button('paralleldit-log-copy', t('errors.copy'))
    copiesOnClick(this.copy, () => this.all().join('\n'), { copy: t('errors.copy'), copied: t('errors.copied') })
    const label = element('label', { for: id }, t('panel.logOf'))
    this.choice = element('div', { class: 'paralleldit-choice' }, label, this.select, this.whole, this.copy)
    this.element = fold(t('panel.log'), false, this.choice, this.nothing, this.lines).element
    this.element.addEventListener('toggle', () => this.refresh())
    this.select.addEventListener('change', () => this.choose(Number(this.select.value)))
    this.whole.addEventListener('click', () => {
      this.isWhole = !this.isWhole
      this.refresh()
    })
  }

  update(group) {
    this.group = group
    this.refresh()
  }

  choose(rank) {
    this.rank = rank
    this.refresh()
  }

  all() {
    return this.group.logs[this.rank]?.lines ?? []
  }

  refresh() {
    const ranks = Math.max(this.group.status.pids?.length ?? 0, this.select.length, 1)
    while (this.select.length < ranks) {
      const rank = this.select.length
      this.select.add(element('option', { value: rank }, t('panel.rank', { rank })))
    }
    if (!this.element.open) return
    const log = this.group.logs[this.rank]
    if (!log && hasLogs(this.group)) queueMicrotask(() => this.openLog(this.group.number, this.rank))
    const lines = this.all()
    attribute(this.lines, 'aria-label', t('panel.logName', { rank: this.rank }))
    text(this.lines, (this.isWhole ? lines : lines.slice(-LAST)).join('\n'))
    text(this.whole, this.isWhole ? t('panel.logEnd') : t('panel.logAll', { count: lines.length }))
    shown(this.whole, lines.length > LAST)
    for (const part of [this.lines, this.copy]) shown(part, lines.length)
    shown(this.nothing, !lines.length)
    text(this.nothing, t(log?.state === 'reading' ? 'panel.logReading' : 'panel.logEmpty'))
  }
}

function button(testId, words) {
  return element('button', { type: 'button', class: 'paralleldit-small', 'data-testid': testId }, words)
}
