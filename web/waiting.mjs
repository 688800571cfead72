// While a sampler waits for its workers, its node shows what they do: start, or read the weights.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { applyEvent, createModel } from './panel/state.mjs'
import { emptyNotice, updateWaiting } from './panel/waiting.mjs'
import { t, textsLoaded } from './text.mjs'

app.registerExtension({
  name: 'ParallelDiT.Waiting',
  async setup() {
    await textsLoaded
    const notices = new Map() // by group
    let model = createModel()
    api.addEventListener('paralleldit.group', ({ detail }) => {
      model = applyEvent(model, { ...detail, log: [] })
      const group = model.groups.find(({ number }) => number === detail.group)
      const before = notices.get(detail.group) ?? emptyNotice()
      const now = updateWaiting(before, group, performance.now() / 1000, t)
      notices.set(detail.group, now)
      // The editor shows this like ComfyUI's own progress texts: on the node while it runs, in every view.
      if (now.text && now.text !== before.text) {
        api.dispatchCustomEvent('progress_text', { nodeId: now.node, text: now.text })
      }
    })
  }
})
