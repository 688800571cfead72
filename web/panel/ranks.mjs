// Shows a row for each rank: its device, its memory, and a warning if it gives no sign of life.

import { element } from '../elements.mjs'
import { t } from '../text.mjs'
import { Children, makeFold, setAttribute, setShown, setText } from './dom.mjs'
import { formatBytes, formatBytesOf, shortenCardName } from './format.mjs'
import { listRanks } from './state.mjs'

const NEARLY_FULL = 0.92

export class RankList {
  constructor() {
    this.list = element('ul', { class: 'paralleldit-ranks' })
    const folded = makeFold(t('panel.ranks'), true, this.list)
    this.element = folded.element
    this.aside = folded.aside
    this.rows = new Children(
      this.list,
      ({ rank }) => rank,
      ({ rank }) => new RankRow(rank)
    )
  }

  update(group) {
    const ranks = listRanks(group)
    setShown(this.element, ranks.length)
    setText(this.aside, String(ranks.length))
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
    setText(this.name, nameRank(row))
    setAttribute(this.element, 'title', describeRank(row))
    const words = formatBytesOf(used, total, (some, all) => t('panel.memory', { used: some, total: all }))
    const share = total ? Math.min(used / total, 1) : 0
    setText(this.memory, words)
    setAttribute(this.bar, 'aria-label', t(`panel.memoryOf.${device}`, { rank }))
    setAttribute(this.bar, 'aria-valuemax', total)
    setAttribute(this.bar, 'aria-valuenow', used)
    setAttribute(this.bar, 'aria-valuetext', words)
    setAttribute(this.bar, 'class', share > NEARLY_FULL ? 'paralleldit-bar paralleldit-full' : 'paralleldit-bar')
    setAttribute(this.fill, 'style', `width: ${(100 * share).toFixed(1)}%`)
    setShown(this.bar, total) // 0 means that the system does not report it
    setShown(this.memory, total)
    const part = placed < weights ? 'weightsInRam' : 'weights'
    setText(this.weights, t(`panel.${part}`, { placed: formatBytes(placed), weights: formatBytes(weights) }))
    setShown(this.weights, weights)
    setShown(this.silentLine, silent)
    setText(this.silence, silent ? t('panel.silent', { seconds: Math.floor(silent) }) : '')
  }
}

/** Names a rank: "GPU 1 · RTX 4090", or "Rank 1 · GPU 1 · RTX 4090" if the GPU's number does not identify the rank. */
function nameRank({ rank, device, index, name, isSame }) {
  const kind = t(`panel.device.${device}`)
  const own = index === null ? [kind] : [`${kind} ${index}`, shortenCardName(name)]
  return (isSame ? [t('panel.rank', { rank }), ...own] : own).join(' · ')
}

const describeRank = ({ rank, pid, index, name }) =>
  [t('panel.rank', { rank }), ...(index === null ? [] : [name]), t('panel.process', { pid })].join(' · ')
