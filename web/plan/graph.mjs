// Pure: reads the graph around a Parallelize Model node, and makes the question for POST /paralleldit/plan.

import { findOrigin, followOutputs } from './links.mjs'

export const PARALLELIZE = 'ParallelDiT_Parallelize'
const LOAD_DIT = 'ParallelDiT_LoadDiT' // it offers folders
const MODEL_FILE = /\.(safetensors|sft|gguf|ckpt|pt|pt2|pth|bin|pkl)$/i
const [MUTED, BYPASSED] = [2, 4]
const FIRST_GROUP = 1
const MODEL = 'MODEL'
const CARRIES_MODEL = [MODEL, 'GUIDER']
const LATENT = 'LATENT'
const SAMPLED = [LATENT, 'IMAGE']
const NEEDED = ['width', 'height'] // of an empty latent: pixels
const SIZES = [...NEEDED, 'length', 'batch_size'] // length: frames; batch_size: images

/**
 * Returns the `question` about a node; null if it does not run, or if only a run can tell. `why`: the text's path and
 * values that say why there is none; null if it does not run. plan: values in place of the node's own.
 */
export function makeQuestion(node, plan) {
  const { values, open } = readWidgets(node)
  const { group, ...own } = values
  const uses = [...listUses(node, new Set(), null)]
  const samplers = uses.filter(({ target }) => target.type !== PARALLELIZE)
  const isReplaced = uses.length > samplers.length && !samplers.length
  if (node.mode) return { question: null, why: null }
  if (isReplaced) return { question: null, why: ['plan.replaced'] }
  if (!plan && open.length && own.mode !== 'auto')
    return { question: null, why: ['plan.open', { names: open.join(', ') }] }
  const question = { values: plan ?? own, group: keepType('number', group), ...findFiles(node) }
  return { question: { ...question, samplers: samplers.map(describeSampler) }, why: null }
}

/** Returns the worker group of a node and its model's file. Null if the node does not run, or if only a run can tell. */
export function findRun(node) {
  const { question } = makeQuestion(node)
  const [model] = Object.values(question?.files ?? {})
  return model === undefined ? null : { group: question.group ?? FIRST_GROUP, model }
}

/** Lists the nodes that sample with a node's model. */
export const listSamplers = (node) =>
  [...listUses(node, new Set(), null)].map(({ target }) => target).filter(({ type }) => type !== PARALLELIZE)

/** Returns the nodes in the order in which their models run, as the editor orders the nodes that sample. */
export function sortByRun(nodes) {
  const first = (node) => Math.min(...listSamplers(node).map(({ order }) => order ?? Number.MAX_VALUE))
  const order = new Map(nodes.map((node) => [node, first(node)]))
  const compare = (one, other) => (one === other ? 0 : one < other ? -1 : 1)
  return [...nodes].sort((one, other) => compare(order.get(one), order.get(other)))
}

/**
 * Finds the node that makes a node's MODEL from none, up the line. Of several MODELs it follows the first. Returns the
 * model `files` that are chosen there, by widget, and the chosen `weight_dtype`.
 */
function findFiles(node) {
  const seen = new Set()
  let maker = null
  for (let at = node; at && !seen.has(at) && at.mode !== MUTED; ) {
    seen.add(at)
    const input = at.inputs?.find(({ type, link }) => type === MODEL && link != null)
    if (!input && at !== node && at.mode !== BYPASSED) maker = at
    at = input && findOrigin(at, input.name)?.node
  }
  const { values } = maker ? readWidgets(maker) : { values: {} }
  const isFile = ({ name, type }) => type === 'combo' && (maker.type === LOAD_DIT || MODEL_FILE.test(values[name]))
  const names = (maker?.widgets ?? []).filter(isFile).map(({ name }) => name)
  const known = names.filter((name) => typeof values[name] === 'string')
  return {
    files: Object.fromEntries(known.map((name) => [name, values[name]])),
    weight_dtype: keepType('string', values.weight_dtype)
  }
}

const describeSampler = ({ target, guidance }) => ({
  type: target.type,
  cfg: keepType('number', guidance),
  picture: readPictureSize(target)
})

/**
 * Lists the nodes that sample with a node's model, also behind LoRAs, guiders and the like, and the next Parallelize
 * Model nodes. guidance: a guider's.
 */
function* listUses(node, seen, cfg) {
  for (const target of followOutputs(node, CARRIES_MODEL, seen)) {
    const { values } = readWidgets(target)
    const guidance = target.type === 'BasicGuider' ? 1 : (values.cfg ?? cfg)
    const gives = (target.outputs ?? []).map((output) => output.type)
    if (target.type === PARALLELIZE) yield { target, guidance }
    else if (gives.some((type) => CARRIES_MODEL.includes(type))) yield* listUses(target, seen, guidance)
    else if (gives.some((type) => SAMPLED.includes(type))) yield { target, guidance }
  }
}

/**
 * Reads the sizes of what a node samples, from the node that makes its empty latent; null if they are not known. A
 * sampler before it keeps the sizes.
 */
function readPictureSize(sampler, seen = new Set()) {
  const [latent] = listInputs(sampler, [LATENT])
  const origin = findOrigin(sampler, latent?.name)?.node
  if (!origin || origin.mode === BYPASSED || seen.has(origin)) return null
  if (listInputs(origin, [LATENT]).length)
    return listInputs(origin, CARRIES_MODEL).length ? readPictureSize(origin, seen.add(origin)) : null
  const { values } = readWidgets(origin)
  const sizes = SIZES.filter((name) => values[name] !== undefined)
  const areWhole = sizes.every((name) => Number.isInteger(values[name]) && values[name] > 0)
  if (!areWhole || !NEEDED.every((name) => sizes.includes(name))) return null
  return Object.fromEntries(sizes.map((name) => [name, values[name]]))
}

const listInputs = (node, types) => (node.inputs ?? []).filter(({ type }) => types.includes(type))

/** Returns whether a node is in auto mode. A mode that another node computes counts as not auto. */
export const isAuto = (node) => readWidgets(node).values.mode === 'auto'

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
