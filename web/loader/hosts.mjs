// Pure: finds the subgraph nodes that hold Parallelize Model nodes, and the nodes on the way to a node inside of subgraphs.

import { PARALLELIZE } from '../plan/graph.mjs'
import { listGraphs } from '../plan/links.mjs'

/** Lists the nodes inside of a subgraph's node, at any depth. A subgraph that is used more than once counts once. */
export function listInner(host, seen = new Set()) {
  if (!host.subgraph || seen.has(host.subgraph)) return []
  seen.add(host.subgraph)
  return host.subgraph.nodes.flatMap((node) => [node, ...listInner(node, seen)])
}

/** Lists each subgraph's node of a workflow that holds Parallelize Model nodes, as `host` and `inner`. */
export const listHosts = (root) =>
  listGraphs(root)
    .flatMap(({ nodes }) => nodes.filter(({ subgraph }) => subgraph))
    .map((host) => ({ host, inner: listInner(host).filter(({ type }) => type === PARALLELIZE) }))
    .filter(({ inner }) => inner.length)

/** Lists the subgraph nodes around the node of an execution id, such as "5:12", the outermost first. */
export function listAround(root, id) {
  const around = []
  let graph = root
  for (const part of String(id).split(':').slice(0, -1)) {
    const host = graph?.getNodeById(part) ?? graph?.getNodeById(Number(part))
    if (!host?.subgraph) break
    around.push(host)
    graph = host.subgraph
  }
  return around
}
