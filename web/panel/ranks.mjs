// A row for each rank: its device, memory, and whether it is silent.

import { element } from '../elements.mjs'
import { t } from '../text.mjs'
import { attribute, Children, fold, shown, text } from './dom.mjs'
import { bytes, bytesOf, cardName } from './format.mjs'
import { ranksOf } from './state.mjs'

const NEARLY_FULL = 0.92

export class RankList {
  constructor() {
    this.list = element('ul', { class: 'paralleldit-ranks' })
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
    this.name = element('span', { class: 'paralleldit-strong paralleldit-cut-off' })
    this.memory = element('span', { class: 'paralleldit-aside' })
    this.fill = element('div')
    this.bar = element('div', { class: 'paralleldit-bar', role: 'meter', 'aria-valuemin': 0 }, this.fill)
    this.weights = element('div', { class: 'paralleldit-weights' })
    this.silence = element('span')
    const icon = element('i', { class: 'pi pi-exclamation-triangle', 'aria-hidden': 'true' })
    this.silentLine = element('p', {}, icon, this.silence)
    const line = element('div', { class: 'paralleldit-line' }, this.name, this.memory)
    const parts = [line, this.bar, this.weights, this.silentLine]
    this.element = element('li', { 'data-testid': `paralleldit-rank-${rank}` }, ...parts)
  }

  update(row) {
    const { rank, device, used, total, weights, placed, silent } = row
    text(this.name, nameWords(row))
    attribute(this.element, 'title', aboutWords(row))
    const words = bytesOf(used, total, (some, all) => t('panel.memory', { used: some, total: all }))
    const share = total ? Math.min(used / total, 1) : 0
    text(this.memory, words)
    attribute(this.bar, 'aria-label', t(`panel.memoryOf.${device}`, { rank }))
    attribute(this.bar, 'aria-valuemax', total)
    attribute(this.bar, 'aria-valuenow', used)
    attribute(this.bar, 'aria-valuetext', words)
    attribute(this.bar, 'class', share > NEARLY_FULL ? 'paralleldit-bar paralleldit-full' : 'paralleldit-bar')
    attribute(this.fill, 'style', `width: ${(100 * share).toFixed(1)}%`)
    shown(this.bar, total) // a system that does not tell, tells 0
    shown(this.memory, total)
    const part = placed < weights ? 'weightsInRam' : 'weights'
    text(this.weights, t(`panel.${part}`, { placed: bytes(placed), weights: bytes(weights) }))
    shown(this.weights, weights)
    shown(this.silentLine, silent)
    text(this.silence, silent ? t('panel.silent', { seconds: Math.floor(silent) }) : '')
  }
}

/** "GPU 1 · RTX 4090"; where the number of the device does not tell the rank, "Rank 1 · GPU 1 · RTX 4090". */
function nameWords({ rank, device, index, name, isSame }) {
  const kind = t(`panel.device.${device}`)
  const own = index === null ? [kind] : [`${kind} ${index}`, cardName(name)]
  return (isSame ? [t('panel.rank', { rank }), ...own] : own).join(' · ')
}

const aboutWords = ({ rank, pid, index, name }) =>
  [t('panel.rank', { rank }), ...(index === null ? [] : [name]), t('panel.process', { pid })].join(' · ')
