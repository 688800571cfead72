// Pure: reads the graph around a plan or a loader, and makes the question for POST /paralleldit/plan.

import { findOrigin, followOutputs } from './links.mjs'

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
const SIZES = [...NEEDED, 'length', 'batch_size'] // length: frames; batch_size: images

/** Returns the question about a plan node, and the names of the values that other nodes compute when they run. */
export function makeQuestion(plan) {
  const { values, open } = readWidgets(plan)
  const nodes = [...followOutputs(plan, ['PARALLEL_PLAN'], new Set())]
  return {
    question: { values, loaders: sortByRun(nodes).flatMap(describeLoader) },
    open: values.mode === 'auto' ? [] : open
  }
}

/** Returns the question about an automatic plan for a loader. */
export const makeLoaderQuestion = (loader) => ({ values: { mode: 'auto' }, loaders: describeLoader(loader) })

/** Does the same as `makeQuestion` for a loader. The question is null if the loader has a plan or does not run. */
export function makeQuestionWithoutPlan(loader) {
  const plan = findOrigin(loader, PLAN_INPUT)
  return { question: plan?.node || plan?.isOpen || loader.mode ? null : makeLoaderQuestion(loader), open: [] }
}

/**
 * Returns the node that asks about a loader's plan, the worker group and the chosen model. Null if the loader does not
 * run, or if only a run can tell.
 */
export function findRun(loader) {
  const plan = findOrigin(loader, PLAN_INPUT)
  const [found] = loader.mode || plan?.isOpen ? [] : describeLoader(loader)
  return found ? { asks: plan?.node ?? loader, group: found.group ?? FIRST_GROUP, model: found.model_name } : null
}

/** Returns what a question says about a loader, in a list. The list is empty for other nodes and unknown models. */
function describeLoader(node) {
  const { model_name, dtype, group } = LOADERS.includes(node.type) ? readWidgets(node).values : {}
  if (typeof model_name !== 'string') return []
  const samplers = [...listSamplers(node, new Set(), null)].map(({ target, guidance }) => ({
    type: target.type,
    cfg: keepType('number', guidance),
    picture: readPictureSize(target)
  }))
  const checkpoint = node.type === CHECKPOINT ? { checkpoint: true } : {}
  return [{ model_name, dtype: keepType('string', dtype), group: keepType('number', group), samplers, ...checkpoint }]
}

/** Lists the nodes that sample with a node's model, also behind LoRAs, guiders and the like. cfg: a guider's. */
function* listSamplers(node, seen, cfg) {
  for (const target of followOutputs(node, CARRIES_MODEL, seen)) {
    const { values } = readWidgets(target)
    const guidance = target.type === 'BasicGuider' ? 1 : (values.cfg ?? cfg)
    const gives = (target.outputs ?? []).map((output) => output.type)
    if (gives.some((type) => CARRIES_MODEL.includes(type))) yield* listSamplers(target, seen, guidance)
    else if (gives.some((type) => SAMPLED.includes(type))) yield { target, guidance }
  }
}

/** Returns the loaders in the order in which their models run, as the editor orders the nodes that sample. */
export function sortByRun(loaders) {
  const first = (loader) =>
    Math.min(...[...listSamplers(loader, new Set(), null)].map(({ target }) => target.order ?? Number.MAX_VALUE))
  const order = new Map(loaders.map((loader) => [loader, first(loader)]))
  const compare = (one, other) => (one === other ? 0 : one < other ? -1 : 1)
  return [...loaders].sort((one, other) => compare(order.get(one), order.get(other)))
}

/** Reads the sizes of what a node samples, from the node that makes its empty latent; null if they are not known. */
function readPictureSize(sampler) {
  const origin = findOrigin(sampler, sampler.inputs?.find(({ type }) => type === LATENT)?.name)?.node
  if (!origin || origin.mode === BYPASSED || origin.inputs?.some(({ type }) => type === LATENT)) return null
  const { values } = readWidgets(origin)
  const sizes = SIZES.filter((name) => values[name] !== undefined)
  const areWhole = sizes.every((name) => Number.isInteger(values[name]) && values[name] > 0)
  if (!areWhole || !NEEDED.every((name) => sizes.includes(name))) return null
  return Object.fromEntries(sizes.map((name) => [name, values[name]]))
}

/** Returns whether a plan node is in auto mode. A mode that another node computes counts as not auto. */
export const isAuto = (plan) => readWidgets(plan).values.mode === 'auto'

/**
 * Reads a node's values by widget. A linked widget gets its source's own `value`, as a primitive has one, or the value
 * that is set at the subgraph's node. A widget without any is open.
 */
function readWidgets(node) {
  const values = {}
  const open = []
  for (const widget of node.widgets ?? []) {
    if (widget.serialize === false) continue
    const origin = findOrigin(node, widget.name)
    const value = !origin ? widget.value : origin.node ? readWidget(origin.node, 'value') : origin.value
    if (value === undefined) open.push(widget.name)
    else values[widget.name] = value
  }
  return { values, open }
}

/**
 * Returns a value only if the server takes its type, else null: another pack's node may use the name for another type.
 */
const keepType = (type, value) => (typeof value === type ? value : null)

function readWidget(node, name) {
  return node?.widgets?.find((widget) => widget.name === name)?.value
}
