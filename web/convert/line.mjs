// Pure: follows a model or a VAE through a workflow, up to where it is made and down to where it is used.

import { findOrigin, GETS, listNamesakes, listTargets, SETS } from '../plan/links.mjs'

/** By type of output, the node that stands behind it and makes it parallel. */
export const PARALLELIZERS = { MODEL: 'ParallelDiT_Parallelize', VAE: 'ParallelDiT_ParallelizeVAE' }

const PASSING = ['Reroute', ...SETS, ...GETS]
const PIPE = /PIPE|CONTEXT|BUS/i // types of many packs that hold several things, a model among them

/** Returns whether a slot of this type may pass on what `kind` names. */
const isPassing = (type, kind) => type === kind || type === '*' || PIPE.test(type)

function* listNext(node, kind) {
  for (const { type, links } of node.outputs ?? []) {
    if (isPassing(type, kind)) yield* listTargets(node.graph, links)
  }
  if (SETS.includes(node.type)) yield* listNamesakes(node, GETS)
}

function* listBefore(node, kind) {
  for (const { type, name } of node.inputs ?? []) {
    const origin = isPassing(type, kind) && findOrigin(node, name)?.node
    if (origin) yield origin
  }
  if (GETS.includes(node.type)) yield* listNamesakes(node, SETS)
}

/** Lists a node and all that `listMore` leads to. */
function* walk(node, kind, listMore, seen = new Set()) {
  if (seen.has(node)) return
  seen.add(node)
  yield node
  for (const next of listMore(node, kind)) yield* walk(next, kind, listMore, seen)
}

/** Lists the nodes that make a node's model or VAE parallel, before it or behind it. It may be one itself. */
export function listParallelizers(node, kind) {
  const found = [...walk(node, kind, listBefore), ...walk(node, kind, listNext)]
  return [...new Set(found)].filter(({ type }) => type === PARALLELIZERS[kind])
}

/** Lists the slots of a node's outputs of this type: the linked ones, or all if none is linked. */
export function listSlots(node, kind) {
  const slots = (node.outputs ?? []).flatMap(({ type }, slot) => (type === kind ? [slot] : []))
  const linked = slots.filter((slot) => node.outputs[slot].links?.length)
  return linked.length ? linked : slots
}

const isUsed = (node, kind) => listSlots(node, kind).some((slot) => node.outputs[slot].links?.length)

/** Returns whether a node has an input for what `kind` names, or such an output is linked to it. */
function takes(node, kind) {
  const findType = ({ origin_id, origin_slot }) => node.graph.getNodeById(origin_id)?.outputs?.[origin_slot]?.type
  const isLinked = (link) => link != null && findType(node.graph.getLink(link) ?? {}) === kind
  return node.inputs?.some(({ type, link }) => type === kind || isLinked(link))
}

/** Returns whether a node makes a MODEL and has none to make it of. */
function makesModel(node) {
  if (node.subgraph || PASSING.includes(node.type) || !listSlots(node, 'MODEL').length) return false
  return ![...walk(node, 'MODEL', listBefore)].some((each) => takes(each, 'MODEL'))
}

/** Returns whether a node gives its model to others only inside of a pipe, where no node can stand behind the model. */
const isPiped = (node) =>
  !isUsed(node, 'MODEL') && node.outputs.some(({ type, links }) => PIPE.test(type) && links?.length)

// Nodes whose models ranks cannot run: by what loads them, the locale's key of what to use instead.
const INSTEAD = [
  { instead: 'wan', makes: 'WANVIDEOMODEL' }, // WanVideoWrapper
  { instead: 'hunyuan', makes: 'HYVIDEOMODEL' }, // HunyuanVideoWrapper
  { instead: 'cogvideo', makes: 'COGVIDEOMODEL' }, // CogVideoXWrapper
  { instead: 'fun', makes: 'FunModels' }, // VideoX-Fun
  { instead: 'quantised', type: /^Nunchaku\w*DiTLoader/ }
]

/** Returns the key of what to use instead of a node whose model ranks cannot run; undefined for other nodes. */
export function findInstead(node) {
  const has = (slots, makes) => slots?.some(({ type }) => type === makes)
  const isMeant = ({ makes, type }) =>
    makes ? has(node.outputs, makes) && !has(node.inputs, makes) : type.test(node.type)
  return INSTEAD.find(isMeant)?.instead
}

/** Returns whether a node is an old group node that holds a loader. The editor could not open it. */
function isClosed({ type, graph }) {
  const [, name] = /^workflow[>/]?(.+)/.exec(type) ?? [] // the editor drops the > of a missing type
  return Boolean(graph.rootGraph.extra?.groupNodes?.[name]?.nodes.some((node) => listSlots(node, 'MODEL').length))
}

/**
 * Sorts these nodes by what becomes of them as the workflow is made parallel. makers: those to put a node behind.
 * insteads: those to use something else for. piped: those whose model is inside of a pipe. closed: old group nodes.
 */
export function sortNodes(nodes) {
  const insteads = nodes.filter(findInstead)
  const stock = nodes.filter((node) => makesModel(node) && !listParallelizers(node, 'MODEL').length)
  const others = stock.filter((node) => !insteads.includes(node))
  const [piped, free] = [others.filter(isPiped), others.filter((node) => !isPiped(node))]
  const used = free.filter((node) => isUsed(node, 'MODEL'))
  const hasUsed = nodes.some((node) => makesModel(node) && isUsed(node, 'MODEL'))
  const closed = nodes.filter((node) => isClosed(node) && !makesModel(node))
  return { makers: hasUsed ? used : free, insteads, piped, closed }
}
