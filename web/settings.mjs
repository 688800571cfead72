// Shows the pack's settings in ComfyUI's settings dialog. Their names and tooltips are in `locales/*/settings.json`.

import { app } from '../../scripts/app.js'
import { addStyle } from './elements.mjs'
import { drawAll, makeControl } from './settings/rows.mjs'
import { onChange } from './settings/server.mjs'

const GROUPS = {
  'Devices and ranks': ['gpus', 'device', 'ranks', 'cpu_ranks'],
  'Worker group': [
    'start',
    'on_free',
    'when_not_parallel',
    'restarts',
    'start_seconds',
    'silence_seconds',
    'log_megabytes'
  ],
  'Set on the server': ['python', 'machines', 'measured']
}

const inOrder = Object.entries(GROUPS).flatMap(([group, names]) => names.map((name) => ({ group, name })))

app.registerExtension({
  name: 'ParallelDiT.Settings',

  settings: inOrder.map(({ group, name }, place) => ({
    id: `ParallelDiT.${name}`,
    category: ['ParallelDiT', group, name],
    name,
    tooltip: name,
    sortOrder: inOrder.length - place, // the dialog shows the highest first
    type: () => makeControl(name)
  })),

  setup() {
    addStyle(new URL('./settings/style.css', import.meta.url))
    onChange(drawAll)
  }
})
