// The end of a rank's log, which stays at its end as lines come, unless one has scrolled up to read.

import { element } from '../elements.js'
import { t } from '../text.js'
import { attribute, fold, shown, text, uniqueId } from './dom.js'
import { hasLogs } from './state.js'

const NEAR_THE_END = 8 // px

export class LogView {
  /** openLog: called with the group's number and a rank whose log is wanted and not there. */
  constructor(openLog) {
    this.openLog = openLog
    this.rank = 0
    this.shown = { key: null, end: 0 } // of the log that is drawn
    this.follows = true
    const id = uniqueId('log-rank')
    this.select = element('select', { id })
    const attributes = { class: 'paralleldit-log', tabindex: 0, role: 'region', 'data-testid': 'paralleldit-log' }
    this.lines = element('pre', attributes)
    this.nothing = element('p', { class: 'paralleldit-quiet' })
    const label = element('label', { for: id }, t('panel.logOf'))
    this.choice = element('div', { class: 'paralleldit-choice' }, label, this.select)
    this.element = fold(t('panel.log'), false, this.choice, this.nothing, this.lines).element
    this.element.addEventListener('toggle', () => this.refresh())
    this.select.addEventListener('change', () => this.choose(Number(this.select.value)))
    this.lines.addEventListener('scroll', () => this.noteScroll())
    // Lines wrap anew in another width; and put back into the page, scrolling begins at the top.
    new ResizeObserver(() => this.follow()).observe(this.lines)
  }

  update(group) {
    this.group = group
    this.refresh()
  }

  choose(rank) {
    this.rank = rank
    this.follows = true
    this.refresh()
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
    attribute(this.lines, 'aria-label', t('panel.logName', { rank: this.rank }))
    this.draw(log)
  }

  /** Adds the new lines below and removes the oldest above; draws all of another log. */
  draw(log) {
    const key = log && `${this.rank} ${log.version}`
    const isSame = this.shown.key === key
    const lines = log?.lines ?? []
    const fresh = isSame ? Math.min((log?.end ?? 0) - this.shown.end, lines.length) : lines.length
    const nodes = lines.slice(lines.length - fresh).map((line) => document.createTextNode(`${line}\n`))
    if (isSame) this.lines.append(...nodes)
    else this.lines.replaceChildren(...nodes)
    while (this.lines.childNodes.length > lines.length) this.lines.firstChild.remove()
    this.shown = { key, end: log?.end ?? 0 }
    shown(this.lines, lines.length)
    shown(this.nothing, !lines.length)
    text(this.nothing, t(log?.state === 'reading' ? 'panel.logReading' : 'panel.logEmpty'))
    if (fresh || !isSame) this.follow()
  }

  follow() {
    if (this.follows) this.lines.scrollTop = this.lines.scrollHeight
  }

  noteScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.lines
    if (clientHeight) this.follows = scrollHeight - scrollTop - clientHeight < NEAR_THE_END
  }
}
