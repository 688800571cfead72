// Pure: makes prompts that differ in their plan, and sums up their runs.

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

/**
 * Returns the plans to compare, as values of a node, in the order in which they run: one device; the node's own if it
 * changes the image; and those with the fastest predictions, or auto without a prediction. The fastest is the last, so
 * the ranks keep it. auto, own: the answers of POST /paralleldit/plan about an automatic plan and the node's own; null
 * for none.
 */
export function listCandidates(auto, own) {
  const best = (auto?.predicted?.best ?? []).filter((each) => each.fits && !each.is_alone)
  const make = ({ values }) => ({ plans: [values], values: makeNodeValues(values), isAlone: false })
  const lossy = own?.is_lossy ? [{ ...make(own), isLossy: true }] : []
  const alone = { plans: [{}], values: { mode: 'manual' }, isAlone: true }
  const open = { plans: [], values: { mode: 'auto' }, isAlone: false }
  return [alone, ...lossy, ...(best.length ? best.map(make).reverse() : [open])]
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

/**
 * Sums up the runs of one prompt, the newest first: the seconds of sampling, those before it, in which ranks started and
 * loaded the model, and the last run's usual step.
 */
export function summarizeRuns(runs) {
  const add = (name) => runs.reduce((sum, run) => sum + (run[name] ?? 0), 0)
  const startup = add('startup')
  const isDone = runs.length > 0 && runs.every(({ state }) => state === 'done')
  const [{ id: last, plans, usual: step = null } = {}] = runs
  return { isDone, last, plans, startup, seconds: add('seconds') - startup, step }
}

/** Puts the rows that have run first, the fastest step first, and marks the fastest exact one. */
export function sortRows(rows) {
  const stepOf = ({ state, result }) => (state === 'done' ? (result.step ?? Number.MAX_VALUE) : Infinity)
  const sorted = [...rows].sort((one, other) => stepOf(one) - stepOf(other) || 0)
  const fastest = sorted.find((row) => row.state === 'done' && !row.isLossy)
  return sorted.map((row) => ({ ...row, isFastest: row === fastest }))
}

/** Adds to each row how many times as fast as one device it was; null if either time is unknown. */
export function addSpeedups(rows) {
  const alone = rows.find((row) => row.isAlone && row.result?.isDone)?.result.step
  return rows.map((row) => {
    const isKnown = alone && row.result?.isDone && row.result.step
    return { ...row, times: isKnown ? alone / row.result.step : null }
  })
}
