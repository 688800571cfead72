// Stock's loaders of diffusion models become parallel, and stock again: by a node's menu, the canvas's, the editor's,
// and by commands. The changed workflow is loaded as the editor loads a step that is undone, and is one step to undo.

import { app } from '../../scripts/app.js'
import { isOld, isStock, KINDS, parallelFor, stockFor, valuesOf } from './convert/loaders.mjs'
import { convert } from './convert/workflow.mjs'
import { LOADERS } from './plan/graph.mjs'
import { graphsOf } from './plan/links.mjs'
import { leastSize } from './plan/size.mjs'
import { loaded, t } from './text.mjs'

const PARALLEL = 'ParallelDiT.MakeWorkflowParallel'
const STOCK = 'ParallelDiT.MakeWorkflowStock'
const TOAST_MS = 8000

app.registerExtension({
  name: 'ParallelDiT.Convert',

  // Translated by `commands.json`, and in the editor's menu by `menuLabels` of `main.json`.
  commands: [
    { id: PARALLEL, label: 'Make this workflow parallel', icon: 'pi pi-server', function: makeWorkflowParallel },
    { id: STOCK, label: 'Make this workflow stock', icon: 'pi pi-undo', function: makeWorkflowStock }
  ],
  menuCommands: [{ path: ['Edit'], commands: [PARALLEL, STOCK] }],

  getNodeMenuItems(live) {
    if (isOld(live)) return [null, { content: t('convert.old'), disabled: true }]
    if (!(live.type in KINDS)) return []
    const node = live.serialize()
    const [type, key, why] = isStock(node)
      ? [parallelFor(node), 'convert.parallel', 'convert.pickle']
      : [stockFor(node, EDITOR), 'convert.stock', 'convert.noStock']
    return [null, { content: t(type ? key : why), disabled: !type, callback: () => makeNode(live, type) }]
  },

  getCanvasMenuItems() {
    const nodes = allNodes()
    const items = []
    if (nodes.some(isStock)) items.push({ content: t('convert.workflowParallel'), callback: makeWorkflowParallel })
    if (nodes.some(({ type }) => LOADERS.includes(type)))
      items.push({ content: t('convert.workflowStock'), callback: makeWorkflowStock })
    return items.length ? [null, ...items] : []
  }
})

/** What the editor knows of stock types. */
const EDITOR = {
  exists: (type) => type in window.LiteGraph.registered_node_types,
  offers: (type, file) => {
    const inputs = window.LiteGraph.registered_node_types[type]?.nodeData?.input?.required ?? {}
    const [list, options] = inputs[KINDS[type].widgets.file] ?? []
    return (Array.isArray(list) ? list : (options?.options ?? [])).includes(file)
  }
}

const allNodes = () => graphsOf(app.rootGraph).flatMap(({ nodes }) => nodes)
const copy = (value) => JSON.parse(JSON.stringify(value))

async function makeNode({ id, graph }, type) {
  const isIt = (node, graphId) => String(node.id) === String(id) && graphId === graph.id
  const { lost } = await change((node, graphId) => (isIt(node, graphId) ? type : null))
  sayLost(lost)
}

async function makeWorkflowParallel() {
  await loaded
  const stock = allNodes().filter(isStock)
  const saved = stock.map((live) => live.serialize())
  const pickles = saved.filter((node) => !parallelFor(node)).map((node) => valuesOf(node).file)
  const { count, lost } = await change(parallelFor)
  if (count) say('success', 'convert.madeParallel', { count })
  else if (!pickles.length) say('info', 'convert.noneToMakeParallel')
  if (pickles.length) say('warn', 'convert.leftPickles', { files: pickles.join(', ') })
  sayLost(lost)
}

async function makeWorkflowStock() {
  await loaded
  const { count, lost } = await change((node) => stockFor(node, EDITOR))
  const left = allNodes().filter(({ type }) => LOADERS.includes(type))
  say(count ? 'success' : 'info', count ? 'convert.madeStock' : 'convert.noneToMakeStock', { count })
  if (left.length) say('warn', 'convert.leftParallel', { nodes: left.map(({ title }) => title).join(', ') })
  sayLost(lost)
}

function sayLost(lost) {
  if (lost.length) say('warn', 'convert.lost', { values: lost.join(', ') })
}

function say(severity, key, values) {
  app.extensionManager.toast.add({ severity, summary: 'ParallelDiT', detail: t(key, values), life: TOAST_MS })
}

/** Has loaders become others, see `convert`, in one step. */
async function change(chosen) {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker
  tracker.beforeChange()
  tracker.afterChange() // what has changed so far is a step of its own
  const workflow = copy(app.rootGraph.serialize())
  const done = convert(workflow, chosen, smallest)
  if (!done.count) return done
  await tracker.updateState([workflow], tracker.undoQueue)
  tracker.redoQueue.length = 0
  tracker.activeState = copy(app.rootGraph.serialize()) // what the editor adds as it loads is none
  return done
}

function smallest(node, graphId) {
  const graph = graphsOf(app.rootGraph).find(({ id }) => id === graphId)
  return leastSize(graph.getNodeById(node.id))
}
