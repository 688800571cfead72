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

/** Makes a button that uses a plan. */
export function makeUseButton(use) {
  const attributes = { type: 'button', class: 'paralleldit-use', 'data-testid': 'paralleldit-use' }
  const button = element('button', { ...attributes, title: t('plan.use_help') }, t('plan.use'))
  button.addEventListener('click', use)
  return button
}

/** Adds a button to each predicted plan of a drawn answer, except to the plan that a person has chosen. use: takes a
 * plan's values. */
export function addUseButtons(target, answer, use) {
  for (const [place, row] of target.querySelectorAll('[data-testid="paralleldit-plan-predicted"] li').entries()) {
    if (!answer.is_auto && row.hasAttribute('aria-current')) continue
    row.append(makeUseButton(() => use(answer.predicted.best[place].values)))
  }
}

/** Gives the loaders of a worker group in the open workflow a plan. values: of the plan in JSON; {} for one device. */
export function usePlan(values, group) {
  asOneChange(() => {
    const loaders = listGraphs(app.rootGraph).flatMap(({ nodes }) => nodes.filter(isOf(group)))
    const plans = new Set(loaders.map((loader) => findOrigin(loader, INPUT)?.node ?? addPlan(loader)))
    for (const plan of plans) if (plan.type === PLAN) setWidgets(plan, values)
  })
}

/** Sets a Parallel Plan node to a plan. values: as in `usePlan`. */
export const setPlan = (plan, values) => asOneChange(() => setWidgets(plan, values))

function asOneChange(change) {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker
  tracker.beforeChange()
  change()
  app.canvas.setDirty(true, true)
  tracker.afterChange()
}

const isOf = (group) => (node) => LOADERS.includes(node.type) && !node.mode && getWidget(node, 'group')?.value === group

const getWidget = (node, name) => node.widgets?.find((widget) => widget.name === name)

function setWidgets(plan, values) {
  for (const [name, value] of Object.entries(makeNodeValues({ ...ONE_DEVICE, ...values }))) {
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
