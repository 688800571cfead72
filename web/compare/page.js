// What a comparison asks of the editor's page and of the server.

import { LOADERS, questionOfLoader } from '../plan/graph.js'

/** app, api: the editor's. */
export function pageOf(app, api) {
  return {
    prompt: () => app.graphToPrompt(),
    async answer(group) {
      const node = loaderNode(app, group)
      if (!node) return null
      const response = await api.fetchApi('/paralleldit/plan', {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify(questionOfLoader(node))
      })
      return response.ok ? response.json() : null
    },
    async runs(group) {
      const { groups } = await (await api.fetchApi('/paralleldit/groups')).json()
      return groups.find((each) => each.group === group)?.runs ?? []
    }
  }
}

/** The first loader of a worker group in the open workflow. */
function loaderNode(app, group) {
  const graphs = [app.rootGraph, ...app.rootGraph.subgraphs.values()]
  const loaders = graphs.flatMap((graph) => graph.nodes.filter(({ type }) => LOADERS.includes(type)))
  return loaders.find((node) => (node.widgets?.find(({ name }) => name === 'group')?.value ?? 1) === group)
}
