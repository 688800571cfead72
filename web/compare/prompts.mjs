// Pure: a prompt under several plans, one after the other, and what came of it.

import { median } from '../panel/format.mjs'

const NODE = 'paralleldit_comparison' // the id of the plan that all loaders get

/** The ids of a worker group's loaders in a prompt in API format. types: of loaders. */
export const loadersOf = (prompt, types, group) =>
  Object.keys(prompt).filter((id) => {
    const { class_type: type, inputs } = prompt[id]
    return types.includes(type) && (inputs.group ?? 1) === group
  })

/**
 * The plans to compare, as values of a Plan node: those that are predicted to be the fastest, or auto where nothing is
 * predicted; and one device. answer: that of POST /paralleldit/plan, or null.
 */
export function candidates(answer) {
  const best = (answer?.predicted?.best ?? []).filter(({ fits }) => fits)
  const ofNode = (values) => ({ ...values, speeds: values.speeds.join(', '), mode: 'manual' })
  const found = best.map(({ values }) => ({ plans: [values], values: ofNode(values), isAlone: false }))
  const auto = { plans: [], values: { mode: 'auto' }, isAlone: false }
  return [...(found.length ? found : [auto]), { plans: [{}], values: { mode: 'manual' }, isAlone: true }]
}

/**
 * A prompt with these loaders under a plan. mark: an input that no node has, and that makes it another prompt than any
 * before: ComfyUI computes nothing twice.
 */
export function under(prompt, loaders, values, mark) {
  const changed = structuredClone(prompt)
  changed[NODE] = { class_type: 'ParallelDiT_Plan', inputs: { ...values, [NODE]: mark } }
  for (const id of loaders) changed[id].inputs.plan = [NODE, 0]
  return changed
}

/** What the runs of one prompt took: of all together the seconds, and the median step. */
export function taken(runs) {
  const steps = runs.flatMap((run) => run.steps.map(([length]) => length))
  const seconds = runs.reduce((sum, run) => sum + (run.seconds ?? 0), 0)
  const isDone = runs.length > 0 && runs.every(({ state }) => state === 'done')
  return { isDone, plans: runs[0]?.plans, seconds, step: steps.length ? median(steps) : null }
}

/** The rows with how many times as fast as one device each was; `times` is null where either is not known. */
export function compared(rows) {
  const alone = rows.find((row) => row.isAlone && row.taken?.isDone)?.taken.step
  return rows.map((row) => {
    const isKnown = alone && row.taken?.isDone && row.taken.step
    return { ...row, times: isKnown ? alone / row.taken.step : null }
  })
}
