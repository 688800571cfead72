// Answers a comparison's questions to the editor's page and to the server.

import { makeQuestion } from '../plan/graph.mjs'
import { findNode } from '../plan/links.mjs'
import { askServer } from '../plan/server.mjs'

const AUTO = { mode: 'auto' }
const TO_STATE = { stopped: 'stop', parked: 'park' } // what brings a ready group back to this state

/** Returns the `host` of a Comparison. app, api: the editor's. */
export function makeHost(app, api) {
  const readGroup = async (group) => {
    const { groups } = await (await api.fetchApi('/paralleldit/groups')).json()
    return groups.find((each) => each.group === group)
  }
  return {
    prompt: () => app.graphToPrompt(),
    about: (id) => {
      const { samplers = [] } = makeQuestion(findNode(app.rootGraph, id), AUTO).question ?? {}
      const { picture } = samplers.find((sampler) => sampler.picture) ?? {}
      return { workflow: app.extensionManager.workflow.activeWorkflow.filename, picture: picture ?? null }
    },
    answers: (id) => {
      const node = findNode(app.rootGraph, id)
      const questions = [makeQuestion(node, AUTO), makeQuestion(node)]
      return Promise.all(questions.map(({ question }) => question && askServer(question)))
    },
    async error(group, run, exact) {
      const answer = await api.fetchApi(`/paralleldit/error?group=${group}&run=${run}&exact=${exact}`)
      return (await answer.json()).error
    },
    runs: async (group) => (await readGroup(group))?.runs ?? [],
    state: async (group) => (await readGroup(group))?.status.state ?? 'stopped',
    async restore(group, state) {
      const action = TO_STATE[state]
      if (action) await api.fetchApi(`/paralleldit/${action}?group=${group}`, { method: 'POST' })
    }
  }
}
