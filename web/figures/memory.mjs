// Pure: says in one line whether a plan fits, and what would fit instead, from the server's answer.

import { formatBytesOf } from '../panel/format.mjs'
import { describeRemark } from '../plan/mesh.mjs'

/**
 * Says what the plan needs where the least memory is left: the line's `text`, and whether it `lacks` memory. It names
 * the place only if cards differ, or for RAM. Null if no model is known. say: `t`.
 */
export function describeFit({ memory, device, ranks = [] }, say) {
  if (!memory) return null
  const { needs, usable, card, fits } = memory.tight
  const sizes = formatBytesOf(needs, usable, (used, total) => say('panel.memory', { used, total }))
  const cards = card && say('plan.gpus_named', { indices: card.index, name: card.name })
  const where = card ? say('plan.fit.on', { cards }) : say('plan.fit.ram')
  const isOpen = fits && memory.working === null && device !== 'cpu'
  const isAlike = new Set(ranks.map((rank) => `${rank.card?.name} ${rank.card?.total}`)).size <= 1
  const lacking = card && isAlike ? 'lacks' : 'lacks_in'
  const verdict = fits === null ? 'part' : fits ? (isOpen ? 'open' : 'fits') : lacking
  return { text: say(`plan.fit.${verdict}`, { sizes, where }), lacks: fits === false }
}

/** Names what would fit instead; null if the plan fits. either: joins words as in "a, b or c". */
export function describeRemedies({ memory }, either, say) {
  const remedies = memory?.remedies
  if (!remedies) return null
  return say(`plan.${remedies.words}`, { remedies: either(remedies.found.map((each) => describeRemark(each, say))) })
}
