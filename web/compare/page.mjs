// Answers a comparison's questions to the editor's page and to the server.

import { makeLoaderQuestion } from '../plan/graph.mjs'
import { askServer } from '../plan/server.mjs'

/** Returns the `host` of a Comparison. app, api: the editor's. */
export function makeHost(app, api) {
  return {
    prompt: () => app.graphToPrompt(),
    about: (loader) => {
      const [{ samplers } = { samplers: [] }] = makeLoaderQuestion(findNode(app.rootGraph, loader)).loaders
      const { picture } = samplers.find((sampler) => sampler.picture) ?? {}
      return { workflow: app.extensionManager.workflow.activeWorkflow.filename, picture: picture ?? null }
    },
    answer: async (loader) => askServer(makeLoaderQuestion(findNode(app.rootGraph, loader))),
    async runs(group) {
      const { groups } = await (await api.fetchApi('/paralleldit/groups')).json()
      return groups.find((each) => each.group === group)?.runs ?? []
    }
  }
}

/** Finds the node of an id in a prompt. The id starts with the subgraph nodes around it, as in "5:12". */
function findNode(rootGraph, id) {
  const [own, ...hosts] = id.split(':').reverse()
  const graph = hosts.reduceRight((within, host) => within.getNodeById(host).subgraph, rootGraph)
  return graph.getNodeById(own)
}
