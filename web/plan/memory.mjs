// Pure: describes what a plan's ranks keep and need in memory, and what their cards have, from the server's answer.

import { formatBytes } from '../panel/format.mjs'
import { captionStage, describeRemark } from './mesh.mjs'

/** Returns one line for all ranks, or one for each stage if stages differ. groups: see `groupRanks`. say: `t`. */
export function describeMemory({ memory, device }, groups, say) {
  if (!memory || !groups.length) return []
  const { kept, working } = memory
  const line = (who, rest) => {
    if (working !== null)
      return say('plan.with_forward', { who, kept: formatBytes(rest), peak: formatBytes(rest + working) })
    return say(device === 'cpu' ? 'plan.at_rest' : 'plan.forward_unknown', { who, kept: formatBytes(rest) })
  }
  if (kept.every((rest) => formatBytes(rest) === formatBytes(kept[0]))) return [line(say('plan.each_rank'), kept[0])]
  return groups[0].stages.map((stage, place) => line(captionStage(stage, say), kept[place]))
}

/** Returns a line for each kind of card: its memory, and whether the plan fits. `lacks` is true if it does not. */
export function describeCards({ memory, ranks }, say) {
  const kinds = new Map()
  for (const [place, fits] of (memory?.fits ?? []).entries()) {
    const card = ranks[place]?.card
    if (!card) continue
    const kind = JSON.stringify([card.name, formatBytes(card.total), fits])
    kinds.set(kind, [...(kinds.get(kind) ?? []), card.index])
  }
  return [...kinds].map(([kind, indices]) => {
    const [name, total, fits] = JSON.parse(kind)
    const cards = say('plan.gpus_named', { indices: formatRanges(indices), name })
    const verdict = fits === null ? 'card' : fits ? 'card_fits' : 'card_lacks'
    return {
      text: say(`plan.${verdict}`, { cards, total, reserve: formatBytes(memory.reserve) }),
      lacks: fits === false
    }
  })
}

/** Names what would fit instead; null if the plan fits. either: joins words as in "a, b or c". */
export function describeRemedies({ memory }, either, say) {
  const remedies = memory?.remedies
  if (!remedies) return null
  return say(`plan.${remedies.words}`, { remedies: either(remedies.found.map((each) => describeRemark(each, say))) })
}

/** Formats numbers as in "0–3, 6". */
function formatRanges(numbers) {
  const runs = []
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = runs.at(-1)
    if (last && number === last[1] + 1) last[1] = number
    else runs.push([number, number])
  }
  return runs.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(', ')
}
