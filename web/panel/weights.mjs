// Pure: where the weights of the model's blocks wait, and what it costs to fetch them, in words.

import { bytes, percent, seconds, summary } from './format.mjs'

const MOST_OF_A_STEP = 0.8 // for which the link works, where it is the bottleneck
const NAMES = { shared: 'weightsShared', host: 'weightsHost' }

/** Sentences about a group's status `weights`, none where all of them are on each rank. t: the texts. */
export function weightsWords({ status, runs }, t) {
  const { weights } = status
  const name = NAMES[weights?.kind]
  if (!name) return []
  const { blocks, of, kept, whole, working, fetched, seconds: needed, link, is_measured: isMeasured } = weights
  const where = t(`panel.${name}`, { going: blocks, blocks: of })
  const sizes = { kept: bytes(kept), whole: bytes(whole), peak: bytes(kept + (working ?? 0)) }
  const stay = t(working ? 'panel.weightsAtPeak' : 'panel.weightsKept', sizes)
  const values = { size: bytes(fetched), seconds: seconds(needed), rate: `${(link / 1e9).toFixed(1)} GB/s` }
  const cost = t(isMeasured ? 'panel.weightsFetchedMeasured' : 'panel.weightsFetchedAssumed', values)
  const found = [where, stay, cost]
  const share = linkShare(needed, runs)
  if (share >= MOST_OF_A_STEP) {
    found.push(t(isMeasured ? 'panel.weightsBottleneck' : 'panel.weightsLikely', { share: percent(share) }))
  }
  return found
}

/** For how much of the last run's steps the link brings weights, if a step is one forward; else it is more. */
function linkShare(needed, runs) {
  const known = summary(runs[0]?.steps ?? [])
  return known?.median ? Math.min(1, needed / known.median) : 0
}
