// Shows a line for each rank: its device, what the driver tells of it, and its memory, as a bar behind the words. The
// weights are the bar's darker part.

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
    const [name, ...others] = new Set(ranks.map((row) => (row.index === null ? '' : shortenCardName(row.name))))
    const isOne = Boolean(name) && !others.length // said once, and not in each row
    setText(this.aside, isOne ? `${ranks.length} × ${name}` : String(ranks.length))
    this.rows.update(ranks.map((row) => ({ ...row, isNamed: !isOne })))
  }
}

class RankRow {
  constructor(rank) {
    this.name = element('span', { class: 'paralleldit-strong paralleldit-cut-off' })
    this.sensors = element('span', { class: 'paralleldit-sensors' })
    this.memory = element('span', { class: 'paralleldit-aside' })
    this.weights = element('div', { class: 'paralleldit-weights' })
    this.fill = element('div', { class: 'paralleldit-used' })
    this.bar = element(
      'div',
      { class: 'paralleldit-meter', role: 'meter', 'aria-valuemin': 0 },
      this.fill,
      this.weights
    )
    const line = element('div', { class: 'paralleldit-line' }, this.name, this.sensors, this.memory)
    this.element = element('li', { 'data-testid': `paralleldit-rank-${rank}` }, this.bar, line)
  }

  update(row) {
    const { rank, device, used, total, placed, silent } = row
    setText(this.name, nameRank(row))
    setAttribute(this.element, 'title', describeRank(row))
    const words = formatBytesOf(used, total, (some, all) => t('panel.memory', { used: some, total: all }))
    const share = total ? Math.min(used / total, 1) : 0
    setText(this.sensors, describeSensors(row))
    setText(this.memory, silent ? t('panel.silent', { seconds: Math.floor(silent) }) : total ? words : '')
    setAttribute(this.element, 'data-silent', silent ? '' : null)
    setAttribute(this.bar, 'aria-label', t(`panel.memoryOf.${device}`, { rank }))
    setAttribute(this.bar, 'aria-valuemax', total)
    setAttribute(this.bar, 'aria-valuenow', used)
    setAttribute(this.bar, 'aria-valuetext', words)
    setAttribute(this.element, 'data-full', share > NEARLY_FULL ? '' : null)
    setAttribute(this.fill, 'style', `width: ${(100 * share).toFixed(1)}%`)
    setAttribute(this.weights, 'style', `width: ${total ? (100 * Math.min(placed / total, share)).toFixed(1) : 0}%`)
    setShown(this.bar, total) // 0 means that the system does not report it
  }
}

/** Names a rank: "GPU 1", "GPU 1 · RTX 4090", or "Rank 1 · GPU 1" if the GPU's number does not identify the rank. */
function nameRank({ rank, device, index, name, isSame, isNamed }) {
  const kind = t(`panel.device.${device}`)
  const own = index === null ? [kind] : [`${kind} ${index}`, ...(isNamed ? [shortenCardName(name)] : [])]
  return (isSame ? [t('panel.rank', { rank }), ...own] : own).join(' · ')
}

/** Describes what the driver tells: "98 % · 71 °C"; '' if it tells nothing. */
const describeSensors = ({ busy, celsius }) =>
  [busy !== null && `${busy} %`, celsius !== null && `${celsius} °C`].filter(Boolean).join(' · ')

function describeRank({ rank, pid, index, name, placed, weights }) {
  const part = placed < weights ? 'weightsInRam' : 'weights'
  const sizes = { placed: formatBytes(placed), weights: formatBytes(weights) }
  const parts = [t('panel.rank', { rank }), ...(index === null ? [] : [name]), t('panel.process', { pid })]
  return [...parts, ...(weights ? [t(`panel.${part}`, sizes)] : [])].join(' · ')
}
