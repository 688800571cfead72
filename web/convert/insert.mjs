// Puts a node behind another one's output in the open graph, and takes it out again. Links keep their ids, so that the
// nodes behind them see no change: some packs' nodes change their inputs as links come and go.

import { listSlots, PARALLELIZERS } from './line.mjs'
import { findPlace } from './place.mjs'

const MUTED = 2
const SAID = 200 // pixels, for what the node says below its widgets once the server has answered

/** Puts a node behind a node's outputs of this type, see `listSlots`. Returns how many were put. */
export const insert = (node, kind) => listSlots(node, kind).filter((slot) => insertBehind(node, slot, kind)).length

function insertBehind(node, slot, kind) {
  const { graph } = node
  const added = window.LiteGraph.createNode(PARALLELIZERS[kind])
  const passesNothing = node.mode === MUTED || !node.inputs?.some(({ type }) => type === kind)
  if (passesNothing) added.mode = node.mode
  graph.add(added)
  const others = graph.nodes.filter((other) => other !== added)
  added.pos = findPlace(node, [added.size[0], added.size[1] + SAID], others, graph.groups)
  const link = node.connect(slot, added, findInput(added, kind))
  if (!link) {
    graph.remove(added) // the other node refuses links
    return false
  }
  const moved = node.outputs[slot].links.filter((id) => id !== link.id)
  moveLinks(graph, moved, added.id, 0)
  added.outputs[0].links = moved
  setLinks(node, slot, [link.id])
  graph.updateExecutionOrder()
  return true
}

/** Removes a node that makes parallel. Its links start where its own model or VAE came from. */
export function remove(node, kind) {
  const { graph, id } = node
  const link = graph.getLink(node.inputs[findInput(node, kind)]?.link)
  const origin = link && graph.getNodeById(link.origin_id)
  const before = link?.originIsIoNode ? graph.inputs[link.origin_slot].linkIds : origin?.outputs[link.origin_slot].links
  if (!before) return graph.remove(node)
  const moved = node.outputs[0].links ?? []
  const place = before.indexOf(link.id)
  keepReroutes(graph, link, moved)
  moveLinks(graph, moved, link.origin_id, link.origin_slot)
  node.outputs[0].links = null // else the graph would remove them, too
  graph.remove(node)
  before.splice(place, 0, ...moved)
  if (origin) setLinks(origin, link.origin_slot, before.length ? before : null)
  takeBack(graph.state, 'lastLinkId', link.id)
  takeBack(graph.state, 'lastNodeId', id)
  graph.updateExecutionOrder()
}

const findInput = (node, kind) => node.inputs.findIndex(({ type }) => type === kind)

function moveLinks(graph, ids, origin, slot) {
  for (const id of ids) {
    const link = graph.getLink(id)
    if (link) Object.assign(link, { origin_id: origin, origin_slot: slot })
  }
}

/** Sets the ids of an output's links. The editor saves a missing node as it was loaded, so they are set there, too. */
function setLinks(node, slot, ids) {
  node.outputs[slot].links = ids
  const saved = node.last_serialization?.outputs?.[slot]
  if (saved) saved.links = ids && [...ids]
}

/** Lets links run through the reroutes of the link before them. */
function keepReroutes(graph, link, moved) {
  const listChain = (segment) =>
    segment ? [segment, ...listChain(segment.parentId == null ? null : graph.reroutes.get(segment.parentId))] : []
  const [, ...reroutes] = listChain(link)
  const links = moved.map((id) => graph.getLink(id)).filter(Boolean)
  if (!reroutes.length) return
  for (const first of new Set(links.map((each) => listChain(each).at(-1)))) first.parentId = link.parentId
  for (const reroute of reroutes) for (const { id } of links) reroute.linkIds.add(id)
}

/** Gives the graph's newest id back, so that the saved file is as before. */
function takeBack(state, name, id) {
  if (Number(state[name]) === Number(id)) state[name] -= 1
}
