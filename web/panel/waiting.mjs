// Pure: what a node that waits for its workers says meanwhile, and once they have come.

import { roughSeconds, seconds } from './format.mjs'
import { readOf, runningOf } from './state.mjs'

export const nothing = () => ({ node: null, text: '', starting: null, loading: 0, since: null })

/** The run that goes on, or one that was waited for and over before any event told of its first step. */
function runOf(before, group) {
  const [last] = group.runs
  const isOver = before.text && last?.node === before.node && group.status.starting === undefined
  return runningOf(group) ?? (isOver ? last : null)
}

/**
 * After an event of a group: the node that samples, and its text, empty where there is nothing to say. starting: the
 * seconds that were seen of it, null for none; loading: likewise of the model's, and since: from when. before: what this
 * gave for the event before. now: in seconds.
 */
export function waiting(before, group, now, t) {
  const { status } = group
  const run = runOf(before, group)
  if (!run?.node) return nothing()
  const { node } = run
  const old = before.node === node ? before : { ...nothing(), node }
  if (status.starting !== undefined) {
    const starting = status.starting
    return { ...old, starting, text: t('waiting.starting', { seconds: roughSeconds(starting) }) }
  }
  if (status.operation === 'load') {
    const since = old.since ?? now
    const share = readOf(status)
    const text = share === null ? t('waiting.loading') : t('waiting.reading', { share })
    return { ...old, since, loading: now - since, text }
  }
  if (!run.made && run.state === 'running') return old
  const done = [
    old.starting !== null && t('waiting.started', { seconds: seconds(old.starting) }),
    old.since !== null && t('waiting.read', { seconds: seconds(old.loading || now - old.since) })
  ]
  return { ...nothing(), node, text: done.filter(Boolean).join('\n') }
}
