// Gives loaders a plan: sets their Parallel Plan node, or adds one to a loader without. One undo takes it back.

import { app } from '../../../scripts/app.js'
import { makeNodeValues } from '../compare/prompts.mjs'
import { element } from '../elements.mjs'
import { LOADERS, PLAN } from '../plan/graph.mjs'
import { findOrigin, listGraphs } from '../plan/links.mjs'
import { t } from '../text.mjs'

const ONE_DEVICE = { dp: 1, cfg: 1, ring: 1, ulysses: 1, pipefusion: 1 }
const INPUT = 'plan'
const GAP = 40
const TITLE = 30

/** Makes a button that gives the loaders of a worker group this plan. values: of the plan in JSON; {} for one device. */
export function makeUseButton(values, group) {
  const attributes = { type: 'button', class: 'paralleldit-use', 'data-testid': 'paralleldit-use' }
  const button = element('button', { ...attributes, title: t('plan.use_help') }, t('plan.use'))
  button.addEventListener('click', () => usePlan(values, group))
  return button
}

/** Gives the loaders of a worker group in the open workflow a plan. */
export function usePlan(values, group) {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker
  tracker.beforeChange()
  const loaders = listGraphs(app.rootGraph).flatMap(({ nodes }) => nodes.filter(isOf(group)))
  const plans = new Set(loaders.map((loader) => findOrigin(loader, INPUT)?.node ?? addPlan(loader)))
  for (const plan of plans) if (plan.type === PLAN) setWidgets(plan, makeNodeValues({ ...ONE_DEVICE, ...values }))
  app.canvas.setDirty(true, true)
  tracker.afterChange()
}

const isOf = (group) => (node) => LOADERS.includes(node.type) && !node.mode && getWidget(node, 'group')?.value === group

const getWidget = (node, name) => node.widgets?.find((widget) => widget.name === name)

function setWidgets(plan, values) {
  for (const [name, value] of Object.entries(values)) {
    const widget = getWidget(plan, name)
    if (!widget) continue
    widget.value = value
    widget.callback?.(value, app.canvas, plan)
  }
}

/** Adds a Plan node beside a loader, where no node is, and connects it. */
function addPlan(loader) {
  const plan = window.LiteGraph.createNode(PLAN)
  loader.graph.add(plan)
  const left = loader.pos[0] - plan.size[0] - GAP
  const isFree = (y) =>
    loader.graph.nodes.every((other) => {
      const [x, top, width, height] = other.getBounding()
      const isApart = x + width <= left || left + plan.size[0] <= x
      return other === plan || isApart || top + height <= y - TITLE || y + plan.size[1] <= top
    })
  let y = loader.pos[1]
  for (let tries = 0; tries < 100 && !isFree(y); tries++) y -= GAP
  plan.pos = [left, y]
  plan.connect(0, loader, loader.findInputSlot(INPUT))
  return plan
}
