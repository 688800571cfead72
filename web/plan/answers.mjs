// Keeps the server's answers about the plans of the open workflow, for views other than the node that asked.

import { findRun, PARALLELIZE, sortByRun } from './graph.mjs'
import { listGraphs } from './links.mjs'

const answers = new WeakMap() // by node
const listeners = []

/** Keeps a node's last answer; null for none. */
export function noteAnswer(node, answer) {
  answers.set(node, answer)
  for (const listener of listeners) listener()
}

/** Calls `listener` after each answer. */
export const onAnswer = (listener) => listeners.push(listener)

/** Returns the last answer about a node; null or undefined if there is none. */
export const findAnswer = (node) => answers.get(node)

/**
 * Returns, by worker group, what is known about its next run in the workflow with this graph: each answer, and the names
 * of the `models` that it is about, in the order in which they run. Answers that lack files are one.
 */
export function findNextRuns(root) {
  const groups = new Map()
  for (const node of sortByRun(listGraphs(root).flatMap(({ nodes }) => nodes.filter(isParallelize)))) {
    const { group, model } = findRun(node) ?? {}
    const answer = model && answers.get(node)
    if (!answer) continue
    const runs = groups.get(group) ?? []
    groups.set(group, runs)
    const known = lacksFiles(answer) && runs.find((run) => lacksFiles(run.answer))
    if (!known) {
      runs.push({ answer, models: [model] })
      continue
    }
    known.models.push(model)
    const others = answer.missing.filter((each) => !known.answer.missing.some((file) => file.model === each.model))
    known.answer = { ...known.answer, missing: [...known.answer.missing, ...others] }
  }
  return groups
}

const isParallelize = ({ type }) => type === PARALLELIZE
const lacksFiles = ({ missing }) => Boolean(missing?.length)
