// Answers a comparison's questions to the editor's page and to the server.

import { makeQuestion } from '../plan/graph.mjs'
import { findNode } from '../plan/links.mjs'
import { askServer } from '../plan/server.mjs'

const AUTO = { mode: 'auto' }

/** Returns the `host` of a Comparison. app, api: the editor's. */
export function makeHost(app, api) {
  return {
    prompt: () => app.graphToPrompt(),
    about: (id) => {
      const { samplers = [] } = makeQuestion(findNode(app.rootGraph, id), AUTO).question ?? {}
      const { picture } = samplers.find((sampler) => sampler.picture) ?? {}
      return { workflow: app.extensionManager.workflow.activeWorkflow.filename, picture: picture ?? null }
    },
    answer: async (id) => {
      const { question } = makeQuestion(findNode(app.rootGraph, id), AUTO)
      return question && askServer(question)
    },
    async error(group, run, exact) {
      const answer = await api.fetchApi(`/paralleldit/error?group=${group}&run=${run}&exact=${exact}`)
      return (await answer.json()).error
    },
    async runs(group) {
      const { groups } = await (await api.fetchApi('/paralleldit/groups')).json()
      return groups.find((each) => each.group === group)?.runs ?? []
    }
  }
}
