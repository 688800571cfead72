// Pure: makes the drawing of a plan, and its description in words, from the server's answer.

import { formatBytes } from '../panel/format.mjs'

export const COMPACT_ABOVE = 16
const MOST_COLUMNS = 4

/**
 * Nests the ranks: shares of the batch contain the pipeline's stages, and these contain the ranks.
 * A group's rows and a cell's tokens and heads are [start, stop] fractions; heads are null if they are not shared.
 */
export function groupRanks({ ranks, memory }) {
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

/** Returns a group's caption; '' if there is only one group. say: `t`. */
export function captionGroup(group, say) {
  if (group.branch) return say(`plan.${group.branch}`)
  if (!group.share) return ''
  const [[index, of], [start, stop]] = [group.share, group.rows]
  if (Math.abs((stop - start) * of - 1) < 1e-6) return say('plan.batch', { index, of })
  return say('plan.batch_by_speed', { index, of, percent: Math.round((stop - start) * 100) })
}

/** Returns a stage's caption: its blocks, or its number if the model is not known. */
export function captionStage(stage, say) {
  if (!stage.stage) return ''
  const [first, last] = stage.blocks ?? []
  if (first === last && stage.blocks) return say('plan.block', { first })
  if (stage.blocks) return say('plan.blocks', { first, last })
  return say('plan.stage', { index: stage.stage[0], of: stage.stage[1] })
}

/** Returns the number of columns for so many boxes, if possible one that fills all rows. */
export function countColumns(count, most = MOST_COLUMNS) {
  if (count <= most) return count
  for (let columns = most; columns > 1; columns--) if (count % columns === 0) return columns
  return most
}

/** Names a rank's device in a word or two; '' for one of another machine. device: the answer's. */
export function labelDevice(cell, device, say) {
  if (cell.card) return say('plan.gpu', { index: cell.card.index })
  return device === 'cpu' ? say('plan.cpu') : ''
}

/** Describes where a rank runs and what it holds. */
export function describeCell(cell, group, stage, device, say) {
  const parts = [captionGroup(group, say), captionStage(stage, say), describeTokens(cell.tokens, say)]
  if (cell.heads && cell.headRange) {
    const [first, last] = cell.headRange
    parts.push(first === last ? say('plan.head', { first }) : say('plan.heads_of', { first, last }))
  }
  if (cell.kept !== undefined) parts.push(say('plan.keeps', { size: formatBytes(cell.kept) }))
  const holds = parts.filter(Boolean).join(', ')
  const named = cell.card
    ? say('plan.gpus_named', { indices: cell.card.index, name: cell.card.name })
    : labelDevice(cell, device, say)
  return say(named ? 'plan.rank_on' : 'plan.rank', { rank: cell.rank, device: named, holds })
}

/** Describes the whole drawing. Above sixteen ranks it also counts the groups of each kind. */
export function describeMesh(groups, world, say) {
  const count = say(world === 1 ? 'plan.one_rank' : 'plan.ranks', { count: world })
  const drawn = groups.flatMap((group) => group.stages.flatMap((stage) => stage.cells)).length
  if (drawn <= COMPACT_ABOVE) return count
  const each = groups[0].stages[0].cells.length
  return `${count}: ${say('plan.summary', { shares: groups.length, stages: groups[0].stages.length, each })}`
}

/** Returns the plan in one line: "Automatic plan: 2 GPUs, ulysses=2". While auto tries plans, it says which this is. */
export function describeTitle({ plan, world, device, is_auto: isAuto, tried }, say) {
  const kind = `plan.line.${device === 'cpu' ? 'cpu' : 'gpu'}${world === 1 ? '' : 's'}`
  const [at, of] = tried ?? []
  const which = at ? say('plan.trying', { plan: world > 1 ? plan : say(kind, { count: 1 }), at, of }) : plan
  const words = [world > 1 || !at ? say(kind, { count: world }) : '', world > 1 || at ? which : '']
  const line = words.filter(Boolean).join(say('plan.comma'))
  return isAuto ? say('plan.automatic', { words: line }) : line
}

/** Returns a remark in the editor's language, or in the server's words if it is not translated. */
export function describeRemark(remark, say) {
  const path = `plan.remarks.${remark.key}`
  const words = say(path, remark.values)
  return words === path ? remark.text : words
}

function describeTokens(tokens, say) {
  const share = tokens.reduce((sum, [start, stop]) => sum + stop - start, 0)
  if (share > 0.999) return say('plan.all_tokens')
  if (tokens.length > 1)
    return say('plan.tokens_of_patches', { percent: formatRange(0, share), patches: tokens.length })
  return say('plan.tokens_of', { percent: formatRange(...tokens[0]) })
}

function formatRange(start, stop) {
  const rounded = (value) => Math.round(value * 100)
  return start === 0 ? `0–${rounded(stop)}` : `${rounded(start)}–${rounded(stop)}`
}
