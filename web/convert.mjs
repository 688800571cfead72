// Turns stock loaders of diffusion models into parallel ones, and back: from the menu of a node, of the canvas or of
// the editor, and by commands. The changed workflow is loaded as after an undo, so that one undo takes it all back.

import { app } from '../../scripts/app.js'
import {
  findOtherVae,
  findParallelType,
  findStockType,
  isDeprecated,
  isParallel,
  isStock,
  KINDS,
  readValues
} from './convert/loaders.mjs'
import { convert } from './convert/workflow.mjs'
import { listInner } from './loader/hosts.mjs'
import { LOADERS } from './plan/graph.mjs'
import { listGraphs } from './plan/links.mjs'
import { getSmallestSize } from './plan/size.mjs'
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

  getNodeMenuItems(live) {
    if (live.subgraph) return makeItems(listInner(live), 'convert.parallel', 'convert.stock')
    if (isDeprecated(live)) return [null, { content: t('convert.old'), disabled: true }]
    if (!(live.type in KINDS)) return []
    const other = findOtherVae(live.type)
    if (other) {
      const key = isParallel(other) ? 'convert.parallel' : 'convert.stock'
      return [null, { content: t(key), callback: () => makeNode(live, other) }]
    }
    const node = live.serialize()
    const [type, key, why] = isStock(node)
      ? [findParallelType(node), 'convert.parallel', 'convert.pickle']
      : [findStockType(node, EDITOR), 'convert.stock', 'convert.noStock']
    return [null, { content: t(type ? key : why), disabled: !type, callback: () => makeNode(live, type) }]
  },

  getCanvasMenuItems() {
    return makeItems(listNodes(), 'convert.workflowParallel', 'convert.workflowStock')
  }
})

/** What the editor knows about stock node types. */
const EDITOR = {
  exists: (type) => type in window.LiteGraph.registered_node_types,
  offers: (type, file) => {
    const inputs = window.LiteGraph.registered_node_types[type]?.nodeData?.input?.required ?? {}
    const [list, options] = inputs[KINDS[type].widgets.file] ?? []
    return (Array.isArray(list) ? list : (options?.options ?? [])).includes(file)
  }
}

const listNodes = () => listGraphs(app.rootGraph).flatMap(({ nodes }) => nodes)
const clone = (value) => JSON.parse(JSON.stringify(value))

/** Makes the menu's items that change all loaders among these nodes. */
function makeItems(nodes, parallelKey, stockKey) {
  const items = []
  if (nodes.some(isStock)) items.push({ content: t(parallelKey), callback: () => makeParallel(nodes) })
  if (nodes.some(({ type }) => LOADERS.includes(type)))
    items.push({ content: t(stockKey), callback: () => makeStock(nodes) })
  return items.length ? [null, ...items] : []
}

async function makeNode({ id, graph }, type) {
  const isNode = (node, graphId) => String(node.id) === String(id) && graphId === graph.id
  const { lost } = await change((node, graphId) => (isNode(node, graphId) ? type : null))
  warnAboutLost(lost)
}

/** Makes the stock loaders among these nodes parallel. */
async function makeParallel(nodes = listNodes()) {
  await textsLoaded
  const saved = nodes.filter(isStock).map((live) => live.serialize())
  const pickles = saved.filter((node) => !findParallelType(node)).map((node) => readValues(node).file)
  const isMeant = among(nodes)
  const { count, lost } = await change((node, graphId) => (isMeant(node, graphId) ? findParallelType(node) : null))
  if (count) showToast('success', `convert.madeParallel${count === 1 ? 'One' : ''}`, { count })
  else if (!pickles.length) showToast('info', 'convert.noneToMakeParallel')
  if (pickles.length) showToast('warn', 'convert.leftPickles', { files: pickles.join(', ') })
  warnAboutLost(lost)
}

/** Makes the parallel loaders among these nodes stock. */
async function makeStock(nodes = listNodes()) {
  await textsLoaded
  const isMeant = among(nodes)
  const { count, lost } = await change((node, graphId) => (isMeant(node, graphId) ? findStockType(node, EDITOR) : null))
  const left = listNodes().filter((live) => LOADERS.includes(live.type) && isMeant(live, live.graph.id))
  showToast(count ? 'success' : 'info', count ? 'convert.madeStock' : 'convert.noneToMakeStock', { count })
  if (left.length) showToast('warn', 'convert.leftParallel', { nodes: left.map(({ title }) => title).join(', ') })
  warnAboutLost(lost)
}

/** Returns whether a saved node of the graph with that id is one of these. */
function among(nodes) {
  const keys = new Set(nodes.map(({ id, graph }) => `${graph.id} ${id}`))
  return ({ id }, graphId) => keys.has(`${graphId} ${id}`)
}

function warnAboutLost(lost) {
  if (lost.length) showToast('warn', 'convert.lost', { values: lost.join(', ') })
}

function showToast(severity, key, values) {
  app.extensionManager.toast.add({ severity, summary: 'ParallelDiT', detail: t(key, values), life: TOAST_MS })
}

/** Replaces loaders, see `convert`, in one step that can be undone. */
async function change(chooseType) {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker
  tracker.beforeChange()
  tracker.afterChange() // earlier changes get a step of their own
  const workflow = clone(app.rootGraph.serialize())
  const result = convert(workflow, chooseType, measureSmallest)
  if (!result.count) return result
  await tracker.updateState([workflow], tracker.undoQueue)
  tracker.redoQueue.length = 0
  tracker.activeState = clone(app.rootGraph.serialize()) // what the editor adds as it loads is no step
  return result
}

function measureSmallest(node, graphId) {
  const graph = listGraphs(app.rootGraph).find(({ id }) => id === graphId)
  return getSmallestSize(graph.getNodeById(node.id))
}
