// Pure: a workflow, as the editor saves it, with other loaders in place of some of its own. Whatever else a node is
// known by, its id, links, place, title, colour and mode, stays.

import { LOADERS } from '../plan/graph.mjs'
import { KINDS, LABELS, ORIGIN, STOCK_DTYPES, USUAL, valuesOf } from './loaders.mjs'

const NAME = 'Node name for S&R'
const PACK = 'cnr_id' // by which an editor that lacks the node's pack finds it
const OF_THE_TYPE = [NAME, PACK, 'aux_id', 'ver']
const PACKS = { UnetLoaderGGUF: 'ComfyUI-GGUF' }
const STOCK_PACK = 'comfy-core'
const OWN_PACK = 'paralleldit'

/**
 * Changes a workflow in place. chosen(node, graph): the type that a node of the graph of that id is to become, null to
 * stay. smallest(node, graph): the size below which the editor has none of its kind. Returns how many became another,
 * and what of theirs the others have no place for, in words.
 */
export function convert(workflow, chosen, smallest) {
  let count = 0
  const lost = []
  for (const graph of [workflow, ...(workflow.definitions?.subgraphs ?? [])]) {
    for (const node of graph.nodes ?? []) {
      const type = chosen(node, graph.id)
      if (!type) continue
      const names = renamed(node.type, type)
      count += 1
      const left = fitValues(node, type)
      if (!LOADERS.includes(type))
        lost.push(...left.map(([meaning, value]) => `${LABELS[meaning] ?? meaning} ${value}`))
      lost.push(...fitInputs(graph, node, names), ...fitOutputs(graph, node, type))
      rename(workflow, graph, node.id, names)
      describe(node, type, smallest(node, graph.id), left)
    }
  }
  return { count, lost: [...new Set(lost)] }
}

/** The widgets that mean the same, from a type's name to the other's. */
function renamed(from, to) {
  const shared = Object.entries(KINDS[from].widgets).filter(([meaning]) => KINDS[to].widgets[meaning])
  return Object.fromEntries(shared.map(([meaning, name]) => [name, KINDS[to].widgets[meaning]]))
}

/** Returns what the type has no place for, by what it means. */
function fitValues(node, type) {
  const given = valuesOf(node)
  const origin = node.properties?.[ORIGIN]
  const before = origin?.type === type ? origin.values : null
  const { widgets } = KINDS[type]
  const hasDtype = LOADERS.includes(type) || STOCK_DTYPES.includes(given.dtype)
  const isKept = (meaning) => meaning in widgets && (meaning !== 'dtype' || hasDtype)
  const isSaid = (meaning) => given[meaning] != null && given[meaning] !== USUAL[meaning]
  const left = Object.entries(given).filter(([meaning]) => !isKept(meaning) && isSaid(meaning))
  const kept = (meaning) => (isKept(meaning) ? given[meaning] : null) ?? before?.[meaning] ?? USUAL[meaning] ?? null
  node.widgets_values = Object.keys(widgets).map(kept)
  return left
}

function fitInputs(graph, node, names) {
  const lost = (node.inputs ?? []).filter(({ name, link }) => !(name in names) && link != null)
  for (const { link } of lost) unlink(graph, link)
  node.inputs = (node.inputs ?? [])
    .filter(({ name }) => name in names)
    .map(({ localized_name, ...input }) => ({ ...input, name: names[input.name], widget: { name: names[input.name] } }))
  for (const [slot, { link }] of node.inputs.entries()) setSlot(graph, link, 'target', slot)
  return lost.map(({ name }) => name)
}

function fitOutputs(graph, node, type) {
  const had = new Map(KINDS[node.type].outputs.map((name, slot) => [name, node.outputs?.[slot]]))
  const { outputs } = KINDS[type]
  const lost = [...had].filter(([name, output]) => !outputs.includes(name) && output?.links?.length)
  for (const [, output] of lost) for (const link of output.links) unlink(graph, link)
  node.outputs = outputs.map((name, slot) => fitOutput(had.get(name) ?? { name, type: name, links: null }, slot))
  for (const [slot, { links }] of node.outputs.entries()) {
    for (const link of links ?? []) setSlot(graph, link, 'origin', slot)
  }
  return lost.map(([name]) => name)
}

function fitOutput({ localized_name, ...output }, slot) {
  return output.slot_index == null ? output : { ...output, slot_index: slot }
}

const idOf = (link) => (Array.isArray(link) ? link[0] : link.id)

/** Links are objects in a subgraph, and [id, origin, slot, target, slot, type] elsewhere. end: origin or target. */
function setSlot(graph, id, end, slot) {
  const link = graph.links?.find((each) => idOf(each) === id)
  if (Array.isArray(link)) link[end === 'origin' ? 2 : 4] = slot
  else if (link) link[`${end}_slot`] = slot
}

function unlink(graph, id) {
  graph.links = graph.links.filter((link) => idOf(link) !== id)
  for (const node of graph.nodes) {
    for (const input of node.inputs ?? []) if (input.link === id) input.link = null
    for (const output of node.outputs ?? []) output.links &&= output.links.filter((each) => each !== id)
  }
  for (const slot of [...(graph.inputs ?? []), ...(graph.outputs ?? [])]) {
    slot.linkIds &&= slot.linkIds.filter((each) => each !== id) // a subgraph's own
  }
}

/** Renames a node's widgets where others name them: nodes of its subgraph that show them, and the app's view. */
function rename(workflow, graph, id, names) {
  for (const { nodes } of [workflow, ...(workflow.definitions?.subgraphs ?? [])]) {
    for (const host of nodes ?? []) {
      for (const shown of (host.type === graph.id && host.properties?.proxyWidgets) || []) {
        if (shown[0] === String(id)) shown[1] = names[shown[1]] ?? shown[1]
      }
    }
  }
  for (const shown of workflow.extra?.linearData?.inputs ?? []) {
    const [place, name] = shown // a place is a node's id, or graph:node:name
    const behind = `:${id}:${name}`
    if (!names[name] || (String(place) !== String(id) && !String(place).endsWith(behind))) continue
    if (String(place).endsWith(behind)) shown[0] = `${place.slice(0, -name.length)}${names[name]}`
    shown[1] = names[name]
  }
}

/** Has a node say what it is: a parallel one also what it was and had, left included, so that it becomes the same again. */
function describe(node, type, least, left) {
  const { [ORIGIN]: origin, ...properties } = node.properties ?? {}
  const saved = Object.entries(properties).filter(([name]) => OF_THE_TYPE.includes(name))
  for (const [name] of saved) delete properties[name]
  if (LOADERS.includes(type)) {
    const was = { type: node.type, size: [...node.size], properties: Object.fromEntries(saved) }
    if (left.length) was.values = Object.fromEntries(left)
    node.properties = { ...properties, [NAME]: type, [PACK]: OWN_PACK, [ORIGIN]: was }
  } else {
    const own = { [NAME]: type, [PACK]: PACKS[type] ?? STOCK_PACK }
    node.properties = { ...properties, ...(origin?.type === type ? origin.properties : own) }
    if (origin) node.size = node.size.map((side, axis) => sideBefore(side, origin.size[axis], least[axis]))
  }
  node.type = type
}

/** The side that a stock node had, where the editor alone has made it longer since. */
const sideBefore = (side, before, least) => (Math.abs(side - Math.max(before, least)) < 1 ? before : side)
