// What the server has said of the plans of the open workflow, for those who show it beside the node that asked.

import { LOADERS, runOf } from './graph.mjs'
import { graphsOf } from './links.mjs'

const answers = new WeakMap() // by plan node, or loader without one
const listeners = []

/** Notes a node's last answer, null for none. */
export function note(node, answer) {
  answers.set(node, answer)
  for (const heard of listeners) heard()
}

/** Has `heard` called after each answer. */
export const follow = (heard) => listeners.push(heard)

/**
 * By worker group, what is known of its next run in the workflow with this graph: for each answer the `models` that it is
 * about, as they were chosen, and whether a plan is connected.
 */
export function nextRuns(root) {
  const groups = new Map()
  const loaders = graphsOf(root).flatMap(({ nodes }) => nodes.filter(({ type }) => LOADERS.includes(type)))
  for (const loader of loaders) {
    const { asks, group, model } = runOf(loader) ?? {}
    const answer = asks && answers.get(asks)
    if (!answer) continue
    const runs = groups.get(group) ?? []
    groups.set(group, runs)
    const known = runs.find((run) => run.answer === answer)
    if (known) known.models.push(model)
    else runs.push({ answer, models: [model], isPlanned: asks !== loader })
  }
  return groups
}
