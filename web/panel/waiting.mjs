// Pure: makes the text of a node that waits for its workers, and of one whose wait is over.

import { formatSeconds, formatWholeSeconds } from './format.mjs'
import { findRunning, getReadPercent } from './state.mjs'

export const emptyNotice = () => ({ node: null, text: '', starting: null, loading: 0, since: null })

/** Finds the running run, or the one that the node waited for and that ended before an event showed its first step. */
function findRun(before, group) {
  const [last] = group.runs
  const isOver = before.text && last?.node === before.node && group.status.starting === undefined
  return findRunning(group) ?? (isOver ? last : null)
}

/**
 * Returns the node that samples, and its text, after an event of a group; the text is '' if there is nothing to say.
 * starting: seconds of the start so far, or null. loading: seconds of loading the model so far, which began at `since`.
 * before: this function's result for the event before. now: in seconds.
 */
export function updateWaiting(before, group, now, t) {
  const { status } = group
  const run = findRun(before, group)
  if (!run?.node) return emptyNotice()
  const { node } = run
  const old = before.node === node ? before : { ...emptyNotice(), node }
  if (status.starting !== undefined) {
    const starting = status.starting
    return { ...old, starting, text: t('waiting.starting', { seconds: formatWholeSeconds(starting) }) }
  }
  if (status.operation === 'load') {
    const since = old.since ?? now
    const share = getReadPercent(status)
    const text = share === null ? t('waiting.loading') : t('waiting.reading', { share })
    return { ...old, since, loading: now - since, text }
  }
  if (!run.made && run.state === 'running') return old
  const done = [
    old.starting !== null && t('waiting.started', { seconds: formatSeconds(old.starting) }),
    old.since !== null && t('waiting.read', { seconds: formatSeconds(old.loading || now - old.since) })
  ]
  return { ...emptyNotice(), node, text: done.filter(Boolean).join('\n') }
}
