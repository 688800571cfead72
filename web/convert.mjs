// Makes models and VAEs parallel by a node behind them, and stock again without it: from the menu of a node, of the
// canvas or of the editor, and by commands. One undo takes it back.

import { app } from '../../scripts/app.js'
import { insert, remove } from './convert/insert.mjs'
import { findInstead, listParallelizers, listSlots, PARALLELIZERS, sortNodes } from './convert/line.mjs'
import { listInner } from './loader/hosts.mjs'
import { listGraphs } from './plan/links.mjs'
import { t, textsLoaded } from './text.mjs'

const PARALLEL = 'ParallelDiT.MakeWorkflowParallel'
const STOCK = 'ParallelDiT.MakeWorkflowStock'
const TOAST_MS = 8000

app.registerExtension({
  name: 'ParallelDiT.Convert',

  // `commands.json` translates these labels, and `menuLabels` of `main.json` translates them in the editor's menu.
  commands: [
    { id: PARALLEL, label: 'Make this workflow parallel', icon: 'pi pi-server', function: () => makeParallel() },
    { id: STOCK, label: 'Make this workflow stock', icon: 'pi pi-undo', function: () => makeStock() }
  ],
  menuCommands: [{ path: ['Edit'], commands: [PARALLEL, STOCK] }],

  getNodeMenuItems(node) {
    const inside = node.subgraph ? makeItems(listInner(node), 'convert.parallel', 'convert.stock') : []
    return inside.length ? inside : makeNodeItems(node)
  },

  getCanvasMenuItems() {
    return makeItems(listNodes(), 'convert.workflowParallel', 'convert.workflowStock')
  }
})

const listNodes = () => listGraphs(app.rootGraph).flatMap(({ nodes }) => nodes)

/** Lists the nodes among these that make parallel, as `node` and what they do it to. */
const listAdded = (nodes) =>
  Object.entries(PARALLELIZERS).flatMap(([kind, type]) =>
    nodes.filter((node) => node.type === type).map((node) => ({ node, kind }))
  )

/** Takes nodes out, the newest first. */
function takeOut(added) {
  for (const { node, kind } of added.sort((one, other) => other.node.id - one.node.id)) remove(node, kind)
}

/** Makes the menu's items that change all models made by these nodes. */
function makeItems(nodes, parallelKey, stockKey) {
  const items = []
  const found = Object.values(sortNodes(nodes))
  if (found.some(({ length }) => length)) items.push({ content: t(parallelKey), callback: () => makeParallel(nodes) })
  if (listAdded(nodes).length) items.push({ content: t(stockKey), callback: () => makeStock(nodes) })
  return items.length ? [null, ...items] : []
}

/** Makes an item for a node's models, and one for its VAEs. */
function makeNodeItems(node) {
  const instead = findInstead(node)
  if (instead)
    return [null, { content: t('convert.instead', { instead: t(`convert.use.${instead}`) }), disabled: true }]
  const kinds = Object.keys(PARALLELIZERS).filter(
    (kind) => PARALLELIZERS[kind] in window.LiteGraph.registered_node_types && listSlots(node, kind).length
  )
  const items = kinds.map((kind) => {
    const added = listAdded(node.type === PARALLELIZERS[kind] ? [node] : listParallelizers(node, kind))
    const keys = kinds.length > 1 && kind === 'VAE' ? ['vaeParallel', 'vaeStock'] : ['parallel', 'stock']
    const act = () => (added.length ? takeOut(added) : insert(node, kind))
    return { content: t(`convert.${keys[Number(added.length > 0)]}`), callback: () => change(act) }
  })
  return items.length ? [null, ...items] : []
}

/** Makes all models parallel that these nodes make. */
async function makeParallel(nodes = listNodes()) {
  await textsLoaded
  const { makers, insteads, piped, closed } = sortNodes(nodes)
  const count = change(() => makers.reduce((sum, node) => sum + insert(node, 'MODEL'), 0))
  if (count) showToast('success', `convert.madeParallel${count === 1 ? 'One' : ''}`, { count })
  for (const key of new Set(insteads.map(findInstead))) {
    const named = nameAll(insteads.filter((node) => findInstead(node) === key))
    showToast('warn', 'convert.leftForeign', { nodes: named, instead: t(`convert.use.${key}`) })
  }
  if (piped.length) showToast('warn', 'convert.leftPiped', { nodes: nameAll(piped) })
  if (closed.length) showToast('warn', 'convert.leftClosed', { nodes: nameAll(closed) })
  if (![makers, insteads, piped, closed].some(({ length }) => length)) showToast('info', 'convert.noneToMakeParallel')
}

/** Makes all models and VAEs stock that these nodes make parallel. */
async function makeStock(nodes = listNodes()) {
  await textsLoaded
  const added = listAdded(nodes)
  change(() => takeOut(added))
  const count = added.length
  showToast(count ? 'success' : 'info', count ? 'convert.madeStock' : 'convert.noneToMakeStock', { count })
}

const nameAll = (nodes) => [...new Set(nodes.map(({ title, type }) => title || type))].join(', ')

function showToast(severity, key, values) {
  app.extensionManager.toast.add({ severity, summary: 'ParallelDiT', detail: t(key, values), life: TOAST_MS })
}

/** Changes the open graph in one step that can be undone. */
function change(act) {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker
  tracker.beforeChange()
  tracker.afterChange() // earlier changes get a step of their own
  tracker.beforeChange()
  try {
    return act()
  } finally {
    app.canvas.setDirty(true, true)
    tracker.afterChange()
  }
}
