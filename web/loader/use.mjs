// Gives Parallelize Model nodes a plan. One undo takes it back.

import { app } from '../../../scripts/app.js'
import { makeNodeValues } from '../compare/prompts.mjs'
import { element } from '../elements.mjs'
import { PARALLELIZE } from '../plan/graph.mjs'
import { listGraphs } from '../plan/links.mjs'
import { t } from '../text.mjs'

const ONE_DEVICE = { dp: 1, cfg: 1, ring: 1, ulysses: 1, pipefusion: 1 }

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

/** Sets a worker group's nodes in the open workflow to a plan. values: of the plan in JSON; {} for one device. */
export const usePlan = (values, group) =>
  setPlan(
    listGraphs(app.rootGraph).flatMap(({ nodes }) => nodes.filter(isOf(group))),
    values
  )

/** Sets these nodes to a plan. values: as in `usePlan`. */
export function setPlan(nodes, values) {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker
  tracker.beforeChange()
  for (const node of nodes) setWidgets(node, values)
  app.canvas.setDirty(true, true)
  tracker.afterChange()
}

const isOf = (group) => (node) => node.type === PARALLELIZE && !node.mode && getWidget(node, 'group').value === group

const getWidget = (node, name) => node.widgets.find((widget) => widget.name === name)

function setWidgets(node, values) {
  for (const [name, value] of Object.entries(makeNodeValues({ ...ONE_DEVICE, ...values }))) {
    const widget = getWidget(node, name)
    if (!widget) continue
    widget.value = value
    widget.callback?.(value, app.canvas, node)
  }
}
