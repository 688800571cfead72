// While a sampler waits for its workers, its node shows what they do: start, or read the weights. So do the subgraphs
// around it. Then it shows the plan, and at the end what a step took. What the server says on a node is translated.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { noteWaiting, updateBadges } from './loader/badges.mjs'
import { applyEvent, createModel } from './panel/state.mjs'
import { emptyNotice, updateWaiting } from './panel/waiting.mjs'
import { onAnswer } from './plan/answers.mjs'
import { t, textsLoaded, translateSaid } from './text.mjs'

app.registerExtension({
  name: 'ParallelDiT.Waiting',
  async setup() {
    await textsLoaded
    onAnswer(updateBadges)
    api.addEventListener('graphChanged', updateBadges)
    app.canvas.canvas.addEventListener('litegraph:set-graph', updateBadges)
    api.addEventListener('progress_text', ({ detail }) => {
      const text = translateSaid(detail.text)
      // The editor may hear of the English text after this.
      if (text !== detail.text) queueMicrotask(() => api.dispatchCustomEvent('progress_text', { ...detail, text }))
    })
    const notices = new Map() // by group
    let model = createModel()
    api.addEventListener('paralleldit.group', ({ detail }) => {
      model = applyEvent(model, { ...detail, log: [] })
      const group = model.groups.find(({ number }) => number === detail.group)
      const before = notices.get(detail.group) ?? emptyNotice()
      const now = updateWaiting(before, group, performance.now() / 1000, t, translateSaid)
      notices.set(detail.group, now)
      if (before.node && before.node !== now.node) noteWaiting(before.node, '')
      if (now.node) noteWaiting(now.node, now.starting !== null || now.since !== null ? now.text : '')
      // The editor shows this like ComfyUI's own progress texts: on the node while it runs, in every view.
      if (now.text && now.text !== before.text) {
        api.dispatchCustomEvent('progress_text', { nodeId: now.node, text: now.text })
      }
    })
  },

  afterConfigureGraph: updateBadges
})
