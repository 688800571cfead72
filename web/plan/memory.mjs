// Pure: from the server's answer about a plan to what its ranks keep and need, and what their cards have, in words.

import { bytes } from '../panel/format.mjs'
import { remarkWords, stageCaption } from './mesh.mjs'

/** A line for all ranks, or one for each stage where they differ. groups: as `meshGroups` has them. say: `t`. */
export function memoryWords({ memory, device }, groups, say) {
  if (!memory || !groups.length) return []
  const { kept, working } = memory
  const line = (who, rest) => {
    if (working !== null) return say('plan.with_forward', { who, kept: bytes(rest), peak: bytes(rest + working) })
    return say(device === 'cpu' ? 'plan.at_rest' : 'plan.forward_unknown', { who, kept: bytes(rest) })
  }
  if (kept.every((rest) => bytes(rest) === bytes(kept[0]))) return [line(say('plan.each_rank'), kept[0])]
  return groups[0].stages.map((stage, place) => line(stageCaption(stage, say), kept[place]))
}

/** What each kind of card has, and whether that is enough: a line for each, and `lacks` where it is not. */
export function cardWords({ memory, ranks }, say) {
  const kinds = new Map()
  for (const [place, fits] of (memory?.fits ?? []).entries()) {
    const card = ranks[place]?.card
    if (!card) continue
    const kind = JSON.stringify([card.name, bytes(card.total), fits])
    kinds.set(kind, [...(kinds.get(kind) ?? []), card.index])
  }
  return [...kinds].map(([kind, indices]) => {
    const [name, total, fits] = JSON.parse(kind)
    const cards = say('plan.gpus_named', { indices: rangesOf(indices), name })
    const verdict = fits === null ? 'card' : fits ? 'card_fits' : 'card_lacks'
    return { text: say(`plan.${verdict}`, { cards, total, reserve: bytes(memory.reserve) }), lacks: fits === false }
  })
}

/** What would fit in place of what does not; null where nothing is amiss. either: words to "a, b or c". */
export function remedyWords({ memory }, either, say) {
  const remedies = memory?.remedies
  if (!remedies) return null
  return say(`plan.${remedies.words}`, { remedies: either(remedies.found.map((each) => remarkWords(each, say))) })
}

/** "0–3, 6" */
function rangesOf(numbers) {
  const runs = []
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = runs.at(-1)
    if (last && number === last[1] + 1) last[1] = number
    else runs.push([number, number])
  }
  return runs.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(', ')
}
