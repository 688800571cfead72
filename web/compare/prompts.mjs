// Pure: makes prompts that differ in their plan, and sums up their runs.

import { computeMedian } from '../panel/format.mjs'
import { PARALLELIZE } from '../plan/graph.mjs'

const MARK = 'paralleldit_comparison' // an input that no node reads

/** Returns the ids of a worker group's Parallelize Model nodes in a prompt in API format. */
export const findNodes = (prompt, group) =>
  Object.keys(prompt).filter((id) => {
    const { class_type: type, inputs } = prompt[id]
    return type === PARALLELIZE && (inputs.group ?? 1) === group
  })

/** Returns a plan's values as a node has them. values: of a plan in JSON. */
export function makeNodeValues({ speeds, ...values }) {
  return { ...values, ...(speeds ? { speeds: speeds.join(', ') } : {}), mode: 'manual' }
}

/** Whether a node's values are of a plan that changes the image. */
const isLossy = ({ mode, pipefusion, patches, sparse, exchange_dtype: dtype, attention }) =>
  mode === 'manual' &&
  ((pipefusion > 1 && patches !== 1) ||
    sparse?.startsWith('radial') ||
    dtype === 'int4' ||
    attention?.startsWith('sage'))

/** Returns the candidate of a plan that a person has set. values: of the node. */
function makeOwn(values) {
  const speeds =
    values.speeds
      ?.split?.(/[\s,;:]+/)
      .filter(Boolean)
      .map(Number) ?? []
  return { plans: [{ ...values, speeds }], values, isAlone: false, isLossy: true }
}

/**
 * Returns the plans to compare, as values of a node: those with the fastest predictions, or auto without a
 * prediction; the node's own if it changes the image; and one device. answer: of POST /paralleldit/plan, or null. own:
 * the inputs of the node.
 */
export function listCandidates(answer, { model, group, ...own }) {
  const best = (answer?.predicted?.best ?? []).filter((each) => each.fits && !each.is_alone)
  const found = best.map(({ values }) => ({ plans: [values], values: makeNodeValues(values), isAlone: false }))
  const auto = { plans: [], values: { mode: 'auto' }, isAlone: false }
  const lossy = isLossy(own) ? [makeOwn(own)] : []
  return [...(found.length ? found : [auto]), ...lossy, { plans: [{}], values: { mode: 'manual' }, isAlone: true }]
}

/**
 * Returns a copy of the prompt in which these nodes have a plan. mark: a value that differs from prompt to prompt.
 * Without it ComfyUI would reuse the last result instead of running again.
 */
export function applyPlan(prompt, nodes, values, mark) {
  const changed = structuredClone(prompt)
  for (const id of nodes) {
    const { model, group } = prompt[id].inputs
    changed[id].inputs = { model, group, ...values, [MARK]: mark }
  }
  return changed
}

/** Sums up the runs of one prompt, the newest first: their seconds together, and their median step. */
export function summarizeRuns(runs) {
  const steps = runs.flatMap((run) => run.steps.map(([length]) => length))
  const seconds = runs.reduce((sum, run) => sum + (run.seconds ?? 0), 0)
  const isDone = runs.length > 0 && runs.every(({ state }) => state === 'done')
  return { isDone, last: runs[0]?.id, plans: runs[0]?.plans, seconds, step: steps.length ? computeMedian(steps) : null }
}

/** Adds to each row how many times as fast as one device it was; null if either time is unknown. */
export function addSpeedups(rows) {
  const alone = rows.find((row) => row.isAlone && row.result?.isDone)?.result.step
  return rows.map((row) => {
    const isKnown = alone && row.result?.isDone && row.result.step
    return { ...row, times: isKnown ? alone / row.result.step : null }
  })
}
