// A badge at each subgraph node that holds a Parallelize Model node: its plan in one line, or what its workers do before
// they sample. Whoever has not opened the subgraph sees nothing else of either.

import { app } from '../../../scripts/app.js'
import { findAnswer } from '../plan/answers.mjs'
import { summarizeError, t } from '../text.mjs'
import { describeLine } from './brief.mjs'
import { listAround, listHosts } from './hosts.mjs'

const COLOURS = {
  bad: { fgColor: '#fff', bgColor: '#a02020' },
  waiting: { fgColor: '#fff', bgColor: '#2060b0' }
}

const TRIES = 60 // frames
const shown = new WeakMap() // by node, its badge of ours
const waiting = new Map() // by a node's execution id, what its workers do
let frame = 0

/** Says what the workers of a sampling node do before they sample; '' once they sample. id: the node's execution id. */
export function noteWaiting(id, text) {
  if (text) waiting.set(id, text)
  else if (!waiting.delete(id)) return
  updateBadges()
}

/** Brings all badges of the open workflow up to date. */
export function updateBadges() {
  const texts = new Map() // by host
  for (const { host, inner } of listHosts(app.rootGraph)) texts.set(host, chooseLine(inner))
  for (const [id, text] of waiting) {
    for (const host of listAround(app.rootGraph, id)) texts.set(host, { text, mark: 'waiting' })
  }
  for (const graph of [app.rootGraph, ...app.rootGraph.subgraphs.values()]) {
    for (const node of graph.nodes) if (node.subgraph) setBadge(node, texts.get(node))
  }
  markElements()
}

/** Chooses what to say of several nodes: what is wrong, or else the first line. */
function chooseLine(nodes) {
  const answers = nodes.map(findAnswer).filter(Boolean)
  const lines = answers.map((answer) => describeLine(answer, summarizeError, t))
  return lines.find(({ mark }) => mark === 'bad') ?? lines[0] ?? { text: t('panel.title'), mark: null }
}

function setBadge(node, line) {
  const old = shown.get(node)
  if (old?.text === line?.text && old?.mark === line?.mark) return
  const others = node.badges.filter((badge) => badge !== old?.badge)
  const badge = line && new window.LGraphBadge({ text: line.text, ...COLOURS[line.mark] })
  node.badges = badge ? [...others, badge] : others
  if (badge) shown.set(node, { ...line, badge })
  else shown.delete(node)
  node.graph?.setDirtyCanvas(true, true)
}

/** Puts the badges at nodes that are DOM, which have none of their own. The editor may have yet to make these. */
function markElements(tries = TRIES) {
  cancelAnimationFrame(frame)
  if (!window.LiteGraph.vueNodesMode) return
  let isMissing = false
  for (const node of app.canvas.graph?.nodes ?? []) {
    if (!node.subgraph) continue
    const target = document.querySelector(`.lg-node[data-node-id="${node.id}"]`)
    const { text, mark } = shown.get(node) ?? {}
    if (!target) isMissing ||= Boolean(text)
    else if (text) Object.assign(target.dataset, { paralleldit: text, paralleldit_mark: mark ?? '' })
    else delete target.dataset.paralleldit
  }
  if (isMissing && tries) frame = requestAnimationFrame(() => markElements(tries - 1))
}
