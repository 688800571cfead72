// While a sampler waits for its workers, its node says for what: they start, or read the weights.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { empty, told } from './panel/state.mjs'
import { nothing, waiting } from './panel/waiting.mjs'
import { loaded, t } from './text.mjs'

app.registerExtension({
  name: 'ParallelDiT.Waiting',
  async setup() {
    await loaded
    const said = new Map() // by group
    let model = empty()
    api.addEventListener('paralleldit.group', ({ detail }) => {
      model = told(model, { ...detail, log: [] })
      const group = model.groups.find(({ number }) => number === detail.group)
      const before = said.get(detail.group) ?? nothing()
      const now = waiting(before, group, performance.now() / 1000, t)
      said.set(detail.group, now)
      // The editor shows it as it shows ComfyUI's own: on the node while it runs, in any view.
      if (now.text && now.text !== before.text) {
        api.dispatchCustomEvent('progress_text', { nodeId: now.node, text: now.text })
      }
    })
  }
})
