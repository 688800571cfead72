// Pure: along the links of a graph, through reroutes and the borders of subgraphs.

const MUTED = 2
const BYPASSED = 4

/** The graph of a workflow, and its subgraphs. */
export const graphsOf = (root) => [root, ...root.subgraphs.values()]

/** The nodes that a subgraph is seen as. */
const hostsOf = (graph) =>
  graphsOf(graph.rootGraph)
    .flatMap(({ nodes }) => nodes)
    .filter(({ subgraph }) => subgraph === graph)

/** The nodes that these links end at. One of a subgraph that does not run as it is made stands for what is in it. */
function* targetsOf(graph, ids) {
  for (const id of ids ?? []) {
    const link = graph.getLink(id)
    const target = link && graph.getNodeById(link.target_id)
    if (link?.targetIsIoNode) {
      for (const host of hostsOf(graph)) yield* targetsOf(host.graph, host.outputs[link.target_slot]?.links)
    } else if (target?.subgraph && !target.mode) {
      yield* targetsOf(target.subgraph, target.subgraph.inputs[link.target_slot]?.linkIds)
    } else if (target) yield target
  }
}

/** The nodes behind a node's outputs of these types, those not in `seen`; reroutes and bypassed nodes hand through. */
export function* reached(node, types, seen) {
  for (const output of node.outputs ?? []) {
    if (node.type !== 'Reroute' && !types.includes(output.type)) continue
    for (const target of targetsOf(node.graph, output.links)) {
      if (seen.has(target) || target.mode === MUTED) continue
      seen.add(target)
      if (target.type === 'Reroute') yield* reached(target, types, seen)
      else if (target.mode === BYPASSED) yield* reached(target, [output.type], seen)
      else yield target
    }
  }
}

/**
 * What is linked to an input, behind reroutes: the `node`, or where that is none the `value` that a person gives at the
 * node of the subgraph. `isOpen`: only a run can tell, as the subgraph is there more than once. Null for nothing.
 */
export function originOf(node, name) {
  return sourceOf(
    node.graph,
    node.inputs?.find((slot) => slot.name === name)
  )
}

function sourceOf(graph, input) {
  const link = input?.link == null ? null : graph?.getLink(input.link)
  return link ? startOf(graph, link) : null
}

function startOf(graph, link) {
  if (link.originIsIoNode) {
    const [host, ...others] = hostsOf(graph)
    const input = host?.inputs[link.origin_slot]
    if (!input || others.length) return { isOpen: true }
    return sourceOf(host.graph, input) ?? { value: host.getWidgetFromSlot(input)?.value }
  }
  const node = graph.getNodeById(link.origin_id)
  if (node?.type === 'Reroute') return sourceOf(graph, node.inputs[0])
  if (!node?.subgraph || node.mode) return node ? { node } : null
  const inner = node.subgraph.getLink(node.subgraph.outputs[link.origin_slot]?.linkIds[0])
  return inner ? startOf(node.subgraph, inner) : null
}
