// Pure: what the graph around a plan or a loader says of it, as the question that POST /paralleldit/plan takes.

import { originOf, reached } from './links.mjs'

export const PLAN = 'ParallelDiT_Plan'
export const LOADER = 'ParallelDiT_LoadDiffusionModel'
export const CHECKPOINT = 'ParallelDiT_LoadCheckpoint'
export const LOADERS = [LOADER, CHECKPOINT]
const PLAN_INPUT = 'plan' // of each loader
const BYPASSED = 4
const FIRST_GROUP = 1
const CARRIES_MODEL = ['MODEL', 'GUIDER']
const LATENT = 'LATENT'
const SAMPLED = [LATENT, 'IMAGE']
const NEEDED = ['width', 'height'] // of an empty latent: pixels
const SIZES = [...NEEDED, 'length', 'batch_size'] // and frames, and how many

/** The question about a plan node, and the names of its values that other nodes compute, which only a run can tell. */
export function questionOf(plan) {
  const { values, open } = widgetValues(plan)
  const loaders = []
  for (const node of reached(plan, ['PARALLEL_PLAN'], new Set())) loaders.push(...loadersAt(node))
  return { question: { values, loaders }, open: values.mode === 'auto' ? [] : open }
}

/** The question about an automatic plan for a loader. */
export const questionOfLoader = (loader) => ({ values: { mode: 'auto' }, loaders: loadersAt(loader) })

/** The same of a loader that has no plan, as `questionOf` has it; no question of one that has, or does not run. */
export function questionWithoutPlan(loader) {
  const plan = originOf(loader, PLAN_INPUT)
  return { question: plan?.node || plan?.isOpen || loader.mode ? null : questionOfLoader(loader), open: [] }
}

/**
 * What a loader runs: the chosen model, in which worker group, and the node that asks about its plan; null where nothing
 * does, or only a run can tell.
 */
export function runOf(loader) {
  const plan = originOf(loader, PLAN_INPUT)
  const [found] = loader.mode || plan?.isOpen ? [] : loadersAt(loader)
  return found ? { asks: plan?.node ?? loader, group: found.group ?? FIRST_GROUP, model: found.model_name } : null
}

/** What a question says of a node, if that is a loader of a known model. */
function loadersAt(node) {
  const { model_name, dtype, group } = LOADERS.includes(node.type) ? widgetValues(node).values : {}
  if (typeof model_name !== 'string') return []
  const samplers = samplersOf(node, new Set(), null)
  const checkpoint = node.type === CHECKPOINT ? { checkpoint: true } : {}
  return [{ model_name, dtype: ofType('string', dtype), group: ofType('number', group), samplers, ...checkpoint }]
}

/** The nodes that sample with a node's model, directly or by way of LoRAs, guiders and the like. cfg: a guider's. */
function samplersOf(node, seen, cfg) {
  const samplers = []
  for (const target of reached(node, CARRIES_MODEL, seen)) {
    const { values } = widgetValues(target)
    const guidance = target.type === 'BasicGuider' ? 1 : (values.cfg ?? cfg)
    const gives = (target.outputs ?? []).map((output) => output.type)
    if (gives.some((type) => CARRIES_MODEL.includes(type))) {
      samplers.push(...samplersOf(target, seen, guidance))
    } else if (gives.some((type) => SAMPLED.includes(type))) {
      samplers.push({ type: target.type, cfg: ofType('number', guidance), picture: pictureOf(target) })
    }
  }
  return samplers
}

/**
 * The sizes of what a node samples, of the node that its latent is made by from nothing; null where that is not known.
 */
function pictureOf(sampler) {
  const origin = originOf(sampler, sampler.inputs?.find(({ type }) => type === LATENT)?.name)?.node
  if (!origin || origin.mode === BYPASSED || origin.inputs?.some(({ type }) => type === LATENT)) return null
  const { values } = widgetValues(origin)
  const sizes = SIZES.filter((name) => values[name] !== undefined)
  const areWhole = sizes.every((name) => Number.isInteger(values[name]) && values[name] > 0)
  if (!areWhole || !NEEDED.every((name) => sizes.includes(name))) return null
  return Object.fromEntries(sizes.map((name) => [name, values[name]]))
}

/** Whether auto chooses a plan node's values but its mode; not where another node computes the mode. */
export const isAuto = (plan) => widgetValues(plan).values.mode === 'auto'

/**
 * A node's values by widget. A linked one has its node's own `value`, as primitives do, or what the subgraph's node is
 * given; if there is none, it is open.
 */
function widgetValues(node) {
  const values = {}
  const open = []
  for (const widget of node.widgets ?? []) {
    if (widget.serialize === false) continue
    const origin = originOf(node, widget.name)
    const value = !origin ? widget.value : origin.node ? widgetValue(origin.node, 'value') : origin.value
    if (value === undefined) open.push(widget.name)
    else values[widget.name] = value
  }
  return { values, open }
}

/** A value that the server takes: other packs' nodes may have another kind by the same name. */
const ofType = (type, value) => (typeof value === type ? value : null)

function widgetValue(node, name) {
  return node?.widgets?.find((widget) => widget.name === name)?.value
}
