// Pure: describes where the weights of the model's blocks are kept, and what it costs to fetch them.

import { formatBytes, formatPercent, formatSeconds } from './format.mjs'

const MOST_OF_A_STEP = 0.8 // a link that is busy for this share of a step is the bottleneck
const NAMES = { shared: 'weightsShared', host: 'weightsHost' }

/** Returns sentences about a group's `weights`; none if each rank keeps all of them. t: finds the texts. */
export function describeWeights({ status, runs }, t) {
  const { weights } = status
  const name = NAMES[weights?.kind]
  if (!name) return []
  const { blocks, of, kept, whole, working, fetched, seconds: needed, link } = weights
  const where = t(`panel.${name}`, { going: blocks, blocks: of })
  const sizes = { kept: formatBytes(kept), whole: formatBytes(whole), peak: formatBytes(kept + (working ?? 0)) }
  const stay = t(working ? 'panel.weightsAtPeak' : 'panel.weightsKept', sizes)
  const values = { size: formatBytes(fetched), seconds: formatSeconds(needed), rate: `${(link / 1e9).toFixed(1)} GB/s` }
  const found = [where, stay, t('panel.weightsFetched', values)]
  if (weights.unpinned) found.push(t('panel.weightsUnpinned', { size: formatBytes(weights.unpinned) }))
  const share = computeLinkShare(needed, runs)
  if (share >= MOST_OF_A_STEP) found.push(t('panel.weightsBottleneck', { share: formatPercent(share) }))
  return found
}

/** Returns the share of the last run's step in which the link carries weights. It counts one forward a step. */
function computeLinkShare(needed, runs) {
  const seconds = runs[0]?.usual
  return seconds ? Math.min(1, needed / seconds) : 0
}
