// What a comparison asks of the editor's page and of the server.

import { questionOfLoader } from '../plan/graph.mjs'
import { request } from '../plan/server.mjs'

/** app, api: the editor's. */
export function pageOf(app, api) {
  return {
    prompt: () => app.graphToPrompt(),
    answer: async (loader) => request(questionOfLoader(nodeOf(app.rootGraph, loader))),
    async runs(group) {
      const { groups } = await (await api.fetchApi('/paralleldit/groups')).json()
      return groups.find((each) => each.group === group)?.runs ?? []
    }
  }
}

/** The node of a prompt's id, which names the subgraphs' nodes that it is in: "5:12". */
function nodeOf(rootGraph, id) {
  const [own, ...hosts] = id.split(':').reverse()
  const graph = hosts.reduceRight((within, host) => within.getNodeById(host).subgraph, rootGraph)
  return graph.getNodeById(own)
}
