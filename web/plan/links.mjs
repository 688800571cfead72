// Pure: follows the links of a graph, through reroutes and the Set and Get nodes of KJNodes and Easy-Use, and into and
// out of subgraphs.

const MUTED = 2
const BYPASSED = 4
export const SETS = ['SetNode', 'easy setNode']
export const GETS = ['GetNode', 'easy getNode']
const PASSING = ['Reroute', ...SETS, ...GETS]

/** Lists the graph of a workflow and its subgraphs. */
export const listGraphs = (root) => [root, ...root.subgraphs.values()]

/** Finds the node of an execution id, such as "6", or "5:12" in a subgraph; null if there is none. */
export function findNode(root, id) {
  const [own, ...hosts] = id.split(':').reverse()
  const graph = hosts.reduceRight((within, host) => within?.getNodeById(host)?.subgraph, root)
  return graph?.getNodeById(own) ?? null
}

/** Lists the nodes that show a subgraph in other graphs. */
const listHosts = (graph) =>
  listGraphs(graph.rootGraph)
    .flatMap(({ nodes }) => nodes)
    .filter(({ subgraph }) => subgraph === graph)

/** Lists the nodes at the end of these links. A subgraph's node is replaced by its inner nodes, unless it is muted or
 * bypassed. */
export function* listTargets(graph, ids) {
  for (const id of ids ?? []) {
    const link = graph.getLink(id)
    const target = link && graph.getNodeById(link.target_id)
    if (link?.targetIsIoNode) {
      for (const host of listHosts(graph)) yield* listTargets(host.graph, host.outputs[link.target_slot]?.links)
    } else if (target?.subgraph && !target.mode) {
      yield* listTargets(target.subgraph, target.subgraph.inputs[link.target_slot]?.linkIds)
    } else if (target) yield target
  }
}

/** Lists the nodes of these types with the name that a Set or Get node has. They stand for links. Missing nodes have no
 * widgets. */
export function listNamesakes(node, types) {
  const read = ({ widgets, widgets_values }) => widgets?.[0]?.value ?? widgets_values?.[0]
  const nodes = listGraphs(node.graph.rootGraph).flatMap((each) => each.nodes)
  return nodes.filter((other) => types.includes(other.type) && read(other) === read(node))
}

/**
 * Lists the nodes behind a node's outputs of these types, except those in `seen`. It looks through reroutes, Set and
 * Get, and bypassed nodes.
 */
export function* followOutputs(node, types, seen) {
  const isPassing = PASSING.includes(node.type)
  for (const output of node.outputs ?? []) {
    if (!isPassing && !types.includes(output.type)) continue
    for (const target of listTargets(node.graph, output.links)) {
      if (seen.has(target) || target.mode === MUTED) continue
      seen.add(target)
      const gets = SETS.includes(target.type) ? listNamesakes(target, GETS) : []
      for (const get of gets) yield* followOutputs(get, types, seen)
      if (PASSING.includes(target.type)) yield* followOutputs(target, types, seen)
      else if (target.mode === BYPASSED) yield* followOutputs(target, isPassing ? types : [output.type], seen)
      else yield target
    }
  }
}

/**
 * Finds what is linked to an input, behind reroutes: the `node`, or else the `value` that a person sets at the
 * subgraph's node. `isOpen`: only a run can tell, since the subgraph is used more than once. Null if nothing is linked.
 */
export function findOrigin(node, name) {
  return findSource(
    node.graph,
    node.inputs?.find((slot) => slot.name === name)
  )
}

function findSource(graph, input) {
  const link = input?.link == null ? null : graph?.getLink(input.link)
  return link ? findStart(graph, link) : null
}

function findStart(graph, link) {
  if (link.originIsIoNode) {
    const [host, ...others] = listHosts(graph)
    const input = host?.inputs[link.origin_slot]
    if (!input || others.length) return { isOpen: true }
    return findSource(host.graph, input) ?? { value: host.getWidgetFromSlot(input)?.value }
  }
  const node = graph.getNodeById(link.origin_id)
  if (GETS.includes(node?.type)) {
    const [set] = listNamesakes(node, SETS)
    return set ? findSource(set.graph, set.inputs[0]) : null
  }
  if (PASSING.includes(node?.type)) return findSource(graph, node.inputs[0])
  if (!node?.subgraph || node.mode) return node ? { node } : null
  const inner = node.subgraph.getLink(node.subgraph.outputs[link.origin_slot]?.linkIds[0])
  return inner ? findStart(node.subgraph, inner) : null
}
