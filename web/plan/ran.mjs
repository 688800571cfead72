// Pure: keeps the last run of each node that samples, for plans that only a run can tell.

import { listSamplers } from './graph.mjs'
import { findNode } from './links.mjs'

const runs = new WeakMap() // by the node that samples

/** Notes runs of the workflow with this graph, the newest first. Returns whether one of them has just ended. */
export function noteRuns(root, told) {
  let hasEnded = false
  for (const run of [...told].reverse()) {
    const node = run.node && findNode(root, run.node)
    if (!node) continue
    const old = runs.get(node)
    runs.set(node, run)
    hasEnded ||= run.state !== 'running' && !(old?.id === run.id && old.state === run.state)
  }
  return hasEnded
}

/** Returns the last run of a node's samplers; null if there is none. */
export function findRan(node) {
  const found = listSamplers(node).map((sampler) => runs.get(sampler))
  return found.filter(Boolean).sort((one, other) => other.began - one.began)[0] ?? null
}
