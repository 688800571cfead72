// Keeps the server's answers about the plans of the open workflow, for views other than the node that asked.

import { findRun, LOADERS, sortByRun } from './graph.mjs'
import { listGraphs } from './links.mjs'

const answers = new WeakMap() // by plan node, or by loader without a plan
const listeners = []

/** Keeps a node's last answer; null for none. */
export function noteAnswer(node, answer) {
  answers.set(node, answer)
  for (const listener of listeners) listener()
}

/** Calls `listener` after each answer. */
export const onAnswer = (listener) => listeners.push(listener)

/** Returns the last answer about a loader's plan; null or undefined if there is none. */
export function findAnswer(loader) {
  const { asks } = findRun(loader) ?? {}
  return asks && answers.get(asks)
}

/**
 * Returns, by worker group, what is known about its next run in the workflow with this graph: each answer, and the names
 * of the `models` that it is about, in the order in which they run. Answers that lack files are one.
 */
export function findNextRuns(root) {
  const groups = new Map()
  const loaders = listGraphs(root).flatMap(({ nodes }) => nodes.filter(({ type }) => LOADERS.includes(type)))
  for (const loader of sortByRun(loaders)) {
    const { asks, group, model } = findRun(loader) ?? {}
    const answer = asks && answers.get(asks)
    if (!answer) continue
    const runs = groups.get(group) ?? []
    groups.set(group, runs)
    const known = runs.find((run) => run.answer === answer || (lacksFiles(run.answer) && lacksFiles(answer)))
    if (!known) {
      runs.push({ answer, models: [model] })
      continue
    }
    known.models.push(model)
    if (known.answer !== answer) {
      const others = answer.missing.filter((each) => !known.answer.missing.some((file) => file.model === each.model))
      known.answer = { ...known.answer, missing: [...known.answer.missing, ...others] }
    }
  }
  return groups
}

const lacksFiles = ({ missing }) => Boolean(missing?.length)
