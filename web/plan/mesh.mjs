// Pure: from the server's answer about a plan to what is drawn of it, and to the same in words.

import { bytes } from '../panel/format.mjs'

export const COMPACT_ABOVE = 16
const MOST_COLUMNS = 4

/**
 * The ranks as nested groups: shares of the batch, in each the pipeline's stages, in each the ranks.
 * A group's rows and a cell's tokens and heads are [start, stop] fractions; heads are null where they are not shared.
 */
export function meshGroups({ ranks, memory }) {
  const oneOf = ([index, count]) => (count > 1 ? [index + 1, count] : null)
  const groups = []
  for (const rank of ranks) {
    const [[batch], [stage]] = [rank.share, rank.stage]
    groups[batch] ??= { share: oneOf(rank.share), rows: rank.rows, branch: rank.branch, stages: [] }
    groups[batch].stages[stage] ??= { stage: oneOf(rank.stage), blocks: rank.blocks, cells: [] }
    groups[batch].stages[stage].cells.push({
      rank: rank.rank,
      card: rank.card,
      kept: memory?.kept[stage] ?? memory?.kept[0],
      tokens: rank.tokens,
      heads: rank.head_share,
      headRange: rank.heads
    })
  }
  return groups
}

/** A group's caption; '' where there is nothing to tell apart. say: `t`. */
export function captionOf(group, say) {
  if (group.branch) return say(`plan.${group.branch}`)
  if (!group.share) return ''
  const [[index, of], [start, stop]] = [group.share, group.rows]
  if (Math.abs((stop - start) * of - 1) < 1e-6) return say('plan.batch', { index, of })
  return say('plan.batch_by_speed', { index, of, percent: Math.round((stop - start) * 100) })
}

/** A stage's caption: its blocks, or its number where the model is not known. */
export function stageCaption(stage, say) {
  if (!stage.stage) return ''
  const [first, last] = stage.blocks ?? []
  if (first === last && stage.blocks) return say('plan.block', { first })
  if (stage.blocks) return say('plan.blocks', { first, last })
  return say('plan.stage', { index: stage.stage[0], of: stage.stage[1] })
}

/** In how many columns to draw so many of a kind: full rows, if a few columns make some. */
export function columnsOf(count, most = MOST_COLUMNS) {
  if (count <= most) return count
  for (let columns = most; columns > 1; columns--) if (count % columns === 0) return columns
  return most
}

/** What a rank computes on, in a word or two; '' for another machine's. device: the answer's. */
export function deviceLabel(cell, device, say) {
  if (cell.card) return say('plan.gpu', { index: cell.card.index })
  return device === 'cpu' ? say('plan.cpu') : ''
}

/** Where a rank is, and what it holds, in words. */
export function cellWords(cell, group, stage, device, say) {
  const parts = [captionOf(group, say), stageCaption(stage, say), tokenWords(cell.tokens, say)]
  if (cell.heads && cell.headRange) {
    const [first, last] = cell.headRange
    parts.push(first === last ? say('plan.head', { first }) : say('plan.heads_of', { first, last }))
  }
  if (cell.kept !== undefined) parts.push(say('plan.keeps', { size: bytes(cell.kept) }))
  const holds = parts.filter(Boolean).join(', ')
  const named = cell.card
    ? say('plan.gpus_named', { indices: cell.card.index, name: cell.card.name })
    : deviceLabel(cell, device, say)
  return say(named ? 'plan.rank_on' : 'plan.rank', { rank: cell.rank, device: named, holds })
}

/** What the drawing is of; above sixteen ranks, how many groups there are of which kind. */
export function meshWords(groups, world, say) {
  const count = say(world === 1 ? 'plan.one_rank' : 'plan.ranks', { count: world })
  const drawn = groups.flatMap((group) => group.stages.flatMap((stage) => stage.cells)).length
  if (drawn <= COMPACT_ABOVE) return count
  const each = groups[0].stages[0].cells.length
  return `${count}: ${say('plan.summary', { shares: groups.length, stages: groups[0].stages.length, each })}`
}

/** The text of a remark in the editor's language; the server's own words where that has none. */
export function remarkWords(remark, say) {
  const path = `plan.remarks.${remark.key}`
  const words = say(path, remark.values)
  return words === path ? remark.text : words
}

function tokenWords(tokens, say) {
  const share = tokens.reduce((sum, [start, stop]) => sum + stop - start, 0)
  if (share > 0.999) return say('plan.all_tokens')
  if (tokens.length > 1) return say('plan.tokens_of_patches', { percent: percent(0, share), patches: tokens.length })
  return say('plan.tokens_of', { percent: percent(...tokens[0]) })
}

function percent(start, stop) {
  const rounded = (value) => Math.round(value * 100)
  return start === 0 ? `0–${rounded(stop)}` : `${rounded(start)}–${rounded(stop)}`
}
