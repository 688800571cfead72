// Shows the last lines of a rank's log. The box is as high as its lines: the panel scrolls, not the box, and the newest
// line comes into view when the log is opened.

import { copyOnClick } from '../clipboard.mjs'
import { element } from '../elements.mjs'
import { t } from '../text.mjs'
import { makeFold, makeId, setAttribute, setShown, setText } from './dom.mjs'
import { shortenLine } from './log.mjs'
import { hasLogs } from './state.mjs'

const LAST = 15 // lines to show before a person asks for all

export class LogView {
  /** readLog: called with the group's number and the rank whose log is shown. */
  constructor(readLog) {
    this.readLog = readLog
    this.rank = 0
    this.showsAll = false
    this.isOpening = false
    const id = makeId('log-rank')
    this.select = element('select', { id })
    const attributes = { class: 'paralleldit-log', tabindex: 0, role: 'region', 'data-testid': 'paralleldit-log' }
    this.lines = element('pre', attributes)
    this.nothing = element('p', { class: 'paralleldit-quiet' })
    this.whole = makeButton('paralleldit-log-all', '')
    this.copy = makeButton('paralleldit-log-copy', t('errors.copy'))
    copyOnClick(this.copy, () => this.getLines().join('\n'), { copy: t('errors.copy'), copied: t('errors.copied') })
    const label = element('label', { for: id }, t('panel.logOf'))
    this.choice = element('div', { class: 'paralleldit-choice' }, label, this.select, this.whole, this.copy)
    this.element = makeFold(t('panel.log'), false, this.choice, this.nothing, this.lines).element
    this.element.addEventListener('toggle', () => {
      this.isOpening = this.element.open
      this.refresh()
    })
    this.select.addEventListener('change', () => this.choose(Number(this.select.value)))
    this.whole.addEventListener('click', () => {
      this.showsAll = !this.showsAll
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

  getLines() {
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
    if (hasLogs(this.group)) queueMicrotask(() => this.readLog(this.group.number, this.rank))
    const lines = this.getLines()
    setAttribute(this.lines, 'aria-label', t('panel.logName', { rank: this.rank }))
    setText(this.lines, (this.showsAll ? lines : lines.slice(-LAST)).map(shortenLine).join('\n'))
    setText(this.whole, this.showsAll ? t('panel.logEnd') : t('panel.logAll', { count: lines.length }))
    setShown(this.whole, lines.length > LAST)
    for (const part of [this.lines, this.copy]) setShown(part, lines.length)
    setShown(this.nothing, !lines.length)
    if (this.isOpening && lines.length) {
      this.isOpening = false
      this.lines.scrollIntoView({ block: 'end' })
    }
    setText(this.nothing, t(log?.isReading ? 'panel.logReading' : 'panel.logEmpty'))
  }
}

function makeButton(testId, words) {
  return element('button', { type: 'button', class: 'paralleldit-small', 'data-testid': testId }, words)
}
