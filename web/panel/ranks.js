// A row for each rank: its number, process, memory, and whether it is silent.

import { element } from '../elements.js'
import { t } from '../text.js'
import { attribute, Children, fold, shown, text } from './dom.js'
import { bytes } from './format.js'
import { ranksOf } from './state.js'

const NEARLY_FULL = 0.92

export class RankList {
  constructor() {
    this.list = element('ul', { class: 'paralleldit-ranks', tabindex: 0 })
    const folded = fold(t('panel.ranks'), true, this.list)
    this.element = folded.element
    this.aside = folded.aside
    this.rows = new Children(
      this.list,
      ({ rank }) => rank,
      ({ rank }) => new RankRow(rank)
    )
  }

  update(group) {
    const ranks = ranksOf(group)
    shown(this.element, ranks.length)
    text(this.aside, String(ranks.length))
    this.rows.update(ranks)
  }
}

class RankRow {
  constructor(rank) {
    this.name = element('span', { class: 'paralleldit-strong' }, t('panel.rank', { rank }))
    this.process = element('span', { class: 'paralleldit-quiet' })
    this.memory = element('span', { class: 'paralleldit-aside' })
    this.fill = element('div')
    this.bar = element('div', { class: 'paralleldit-bar', role: 'meter', 'aria-valuemin': 0 }, this.fill)
    this.weights = element('div', { class: 'paralleldit-weights' })
    this.silence = element('span')
    const icon = element('i', { class: 'pi pi-exclamation-triangle', 'aria-hidden': 'true' })
    this.silentLine = element('p', {}, icon, this.silence)
    const line = element('div', { class: 'paralleldit-line' }, this.name, this.process, this.memory)
    const parts = [line, this.bar, this.weights, this.silentLine]
    this.element = element('li', { 'data-testid': `paralleldit-rank-${rank}` }, ...parts)
  }

  update({ rank, pid, device, used, total, weights, placed, silent }) {
    text(this.process, t('panel.process', { device: t(`panel.device.${device}`), pid }))
    const words = t('panel.memory', { used: bytes(used), total: bytes(total) })
    const share = total ? Math.min(used / total, 1) : 0
    text(this.memory, words)
    attribute(this.bar, 'aria-label', t(`panel.memoryOf.${device}`, { rank }))
    attribute(this.bar, 'aria-valuemax', total)
    attribute(this.bar, 'aria-valuenow', used)
    attribute(this.bar, 'aria-valuetext', words)
    attribute(this.bar, 'title', `${t(`panel.memoryOf.${device}`, { rank })}: ${words}`)
    attribute(this.bar, 'class', share > NEARLY_FULL ? 'paralleldit-bar paralleldit-full' : 'paralleldit-bar')
    this.fill.style.width = `${100 * share}%`
    shown(this.bar, total) // a system that does not tell, tells 0
    shown(this.memory, total)
    const part = placed < weights ? 'weightsInRam' : 'weights'
    text(this.weights, t(`panel.${part}`, { placed: bytes(placed), weights: bytes(weights) }))
    shown(this.weights, weights)
    shown(this.silentLine, silent)
    attribute(this.element, 'class', silent ? 'paralleldit-is-silent' : null)
    text(this.silence, silent ? t('panel.silent', { seconds: Math.floor(silent) }) : '')
  }
}
