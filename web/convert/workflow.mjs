// Pure: replaces loaders in a workflow, as the editor saves it. A replaced node keeps its id, links, place, title,
// colour and mode.

import { DEFAULTS, isParallel, KINDS, LABELS, ORIGIN, readValues, STOCK_DTYPES, UNUSED } from './loaders.mjs'

const NAME = 'Node name for S&R'
const PACK = 'cnr_id' // by this an editor without the node's pack finds the pack
const OF_THE_TYPE = [NAME, PACK, 'aux_id', 'ver']
const PACKS = { UnetLoaderGGUF: 'ComfyUI-GGUF' }
const STOCK_PACK = 'comfy-core'
const OWN_PACK = 'paralleldit'

/**
 * Changes a workflow in place. chooseType(node, graphId) returns a node's new type, or null to leave it.
 * getSmallestSize(node, graphId) returns the smallest size that the editor gives such a node. Returns the count of
 * replaced nodes, and in words what the new ones have no place for.
 */
export function convert(workflow, chooseType, getSmallestSize) {
  let count = 0
  const lost = []
  for (const graph of [workflow, ...(workflow.definitions?.subgraphs ?? [])]) {
    for (const node of graph.nodes ?? []) {
      const type = chooseType(node, graph.id)
      if (!type) continue
      const names = matchWidgets(node.type, type)
      count += 1
      const left = fitValues(node, type)
      if (!isParallel(type)) lost.push(...left.map(([meaning, value]) => `${LABELS[meaning] ?? meaning} ${value}`))
      lost.push(...fitInputs(graph, node, names), ...fitOutputs(graph, node, type))
      renameWidgets(workflow, graph, node.id, names)
      setProperties(node, type, getSmallestSize(node, graph.id), left)
    }
  }
  return { count, lost: [...new Set(lost)] }
}

/** Maps one type's widget names to the other's, for widgets of the same meaning. */
function matchWidgets(from, to) {
  const shared = Object.entries(KINDS[from].widgets).filter(([meaning]) => KINDS[to].widgets[meaning])
  return Object.fromEntries(shared.map(([meaning, name]) => [name, KINDS[to].widgets[meaning]]))
}

/** Sets the values for a node's new type. Returns the values that this type has no place for, as [meaning, value]. */
function fitValues(node, type) {
  const given = readValues(node)
  const origin = node.properties?.[ORIGIN]
  const before = origin?.type === type ? origin.values : null
  const { widgets } = KINDS[type]
  const hasDtype = isParallel(type) || STOCK_DTYPES.includes(given.dtype)
  const isKept = (meaning) => meaning in widgets && (meaning !== 'dtype' || hasDtype)
  const isSaid = (meaning) =>
    !UNUSED.includes(meaning) && given[meaning] != null && given[meaning] !== DEFAULTS[meaning]
  const left = Object.entries(given).filter(([meaning]) => !isKept(meaning) && isSaid(meaning))
  const chooseValue = (meaning) =>
    (isKept(meaning) ? given[meaning] : null) ?? before?.[meaning] ?? DEFAULTS[meaning] ?? null
  if ('vaeFile' in widgets)
    delete node.widgets_values // the editor's own defaults
  else node.widgets_values = Object.keys(widgets).map(chooseValue)
  return left
}

function fitInputs(graph, node, names) {
  const plain = KINDS[node.type].inputs ?? []
  const lost = (node.inputs ?? []).filter(({ name, link }) => !(name in names || plain.includes(name)) && link != null)
  for (const { link } of lost) unlink(graph, link)
  node.inputs = (node.inputs ?? [])
    .filter(({ name }) => name in names || plain.includes(name))
    .map(({ localized_name, ...input }) => {
      const name = names[input.name]
      return name ? { ...input, name, widget: { name } } : input
    })
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

const getLinkId = (link) => (Array.isArray(link) ? link[0] : link.id)

/** Sets the slot at one end of a link: a link is an object in a subgraph, and [id, origin, slot, target, slot, type]
 * elsewhere. end: 'origin' or 'target'. */
function setSlot(graph, id, end, slot) {
  const link = graph.links?.find((each) => getLinkId(each) === id)
  if (Array.isArray(link)) link[end === 'origin' ? 2 : 4] = slot
  else if (link) link[`${end}_slot`] = slot
}

function unlink(graph, id) {
  graph.links = graph.links.filter((link) => getLinkId(link) !== id)
  for (const node of graph.nodes) {
    for (const input of node.inputs ?? []) if (input.link === id) input.link = null
    for (const output of node.outputs ?? []) output.links &&= output.links.filter((each) => each !== id)
  }
  for (const slot of [...(graph.inputs ?? []), ...(graph.outputs ?? [])]) {
    slot.linkIds &&= slot.linkIds.filter((each) => each !== id) // the subgraph's own inputs and outputs
  }
}

/** Renames a node's widgets where others refer to them: in the subgraph nodes that show them, and in the app's view. */
function renameWidgets(workflow, graph, id, names) {
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

/**
 * Sets a node's type, properties and size. A parallel loader also keeps what the stock loader was and had, `left`
 * included, so that it can become the same again.
 */
function setProperties(node, type, least, left) {
  const { [ORIGIN]: origin, ...properties } = node.properties ?? {}
  const saved = Object.entries(properties).filter(([name]) => OF_THE_TYPE.includes(name))
  for (const [name] of saved) delete properties[name]
  if (isParallel(type)) {
    const stock = { type: node.type, size: [...node.size], properties: Object.fromEntries(saved) }
    if (left.length) stock.values = Object.fromEntries(left)
    node.properties = { ...properties, [NAME]: type, [PACK]: OWN_PACK, [ORIGIN]: stock }
  } else {
    const own = { [NAME]: type, [PACK]: PACKS[type] ?? STOCK_PACK }
    node.properties = { ...properties, ...(origin?.type === type ? origin.properties : own) }
    if (origin) node.size = node.size.map((side, axis) => restoreSide(side, origin.size[axis], least[axis]))
  }
  node.type = type
}

/** Returns the side that the stock node had, if only the editor has made it longer since; else the present side. */
const restoreSide = (side, before, least) => (Math.abs(side - Math.max(before, least)) < 1 ? before : side)
