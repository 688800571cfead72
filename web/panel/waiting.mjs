// Pure: makes the text of a node that samples: what its workers do before they sample, then their plan, and at the end
// what a step took.

import { countRanks, describePlans, formatSeconds } from './format.mjs'
import { findRunning, getReadPercent } from './state.mjs'

const SHORT_LOAD = 1 // seconds; a shorter one is not told

export const emptyNotice = () => ({ node: null, text: '', starting: null, since: null })

/** Finds the running run, or the one of the same node that has ended since the event before. */
function findRun(before, group) {
  const [last] = group.runs
  const isOver = before.node !== null && last?.node === before.node && group.status.starting === undefined
  return findRunning(group) ?? (isOver ? last : null)
}

/**
 * Returns the node that samples, and its text, after an event of a group; the text is '' if there is nothing to say.
 * starting: seconds of the start so far, or null. since: when loading the model began, or null. before: this function's
 * result for the event before. now: in seconds. translate: a sentence of the server's.
 */
export function updateWaiting(before, group, now, t, translate) {
  const { status } = group
  const run = findRun(before, group)
  if (!run?.node) return emptyNotice()
  const { node } = run
  const old = before.node === node ? before : { ...emptyNotice(), node }
  if (status.starting !== undefined && !run.made) {
    const starting = status.starting
    return { ...old, starting, text: t('waiting.starting', { seconds: formatSeconds(Math.ceil(starting)) }) }
  }
  if (status.operation === 'load') {
    const since = old.since ?? now
    if (now - since < SHORT_LOAD) return { ...old, since }
    const share = getReadPercent(status)
    return { ...old, since, text: share === null ? t('waiting.loading') : t('waiting.reading', { share }) }
  }
  if (!run.made && run.state === 'running') return old
  return { ...emptyNotice(), node, text: [describeRun(run, t), translate(run.reason)].filter(Boolean).join('\n') }
}

/** Describes a run in a line: "2 ranks · cfg=2", and once it is done "2 ranks · cfg=2 · 27 ms a step". */
function describeRun({ plans, usual, state, is_stock: isStock }, t) {
  if (isStock || !plans.length) return ''
  const count = countRanks(plans.at(-1))
  const step = state === 'done' && usual && t('plan.speed.step', { seconds: formatSeconds(usual) })
  return [count > 1 && t('plan.ranks', { count }), describePlans(plans, t), step].filter(Boolean).join(' · ')
}
