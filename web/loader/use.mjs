// Gives Parallelize Model nodes a plan. One undo takes it back.

import { app } from '../../../scripts/app.js'
import { makeNodeValues } from '../compare/prompts.mjs'
import { element } from '../elements.mjs'
import { findAnswer } from '../plan/answers.mjs'
import { isAuto, PARALLELIZE } from '../plan/graph.mjs'
import { listGraphs } from '../plan/links.mjs'
import { DEGREES } from '../plan/used.mjs'
import { t } from '../text.mjs'

const ONE_DEVICE = Object.fromEntries(DEGREES.map((axis) => [axis, 1]))

/** Makes a button that uses a plan. */
export function makeUseButton(use, words = t('plan.use'), help = t('plan.use_help')) {
  const attributes = { type: 'button', class: 'paralleldit-use', 'data-testid': 'paralleldit-use', title: help }
  const button = element('button', attributes, words)
  button.addEventListener('click', use)
  return button
}

/**
 * Adds buttons to a drawn answer: for the plans that it offers, and for each predicted plan, except one that does not
 * fit, and the plan that a person has chosen. use: takes a plan's values; null for auto.
 */
export function addUseButtons(target, answer, use) {
  const buttons = (answer?.offers ?? []).map(({ plan, values }) =>
    values
      ? makeUseButton(() => use(values), t('plan.use_plan', { plan }))
      : makeUseButton(() => use(null), t('plan.use_auto'), t('plan.use_auto_help'))
  )
  const lines = [...target.querySelectorAll('.paralleldit-plan-error, .paralleldit-plan-step, .paralleldit-plan-note')]
  if (buttons.length) lines.at(-1)?.after(element('div', { class: 'paralleldit-plan-offers' }, ...buttons))
  for (const [place, row] of target.querySelectorAll('[data-testid="paralleldit-plan-predicted"] li').entries()) {
    const { fits, values } = answer.predicted.best[place]
    if (!fits || (!answer.is_auto && row.hasAttribute('aria-current'))) continue
    row.append(makeUseButton(() => use(values)))
  }
}

/** Sets a worker group's nodes in the open workflow to a plan. values: of the plan in JSON; {} for one device; null for
 * auto. */
export const usePlan = (values, group) =>
  setPlan(
    listGraphs(app.rootGraph).flatMap(({ nodes }) => nodes.filter(isOf(group))),
    values
  )

/** Sets these nodes to a plan. values: as in `usePlan`. */
export function setPlan(nodes, values) {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker
  tracker.beforeChange()
  const chosen = values ? makeNodeValues({ ...ONE_DEVICE, ...values }) : { mode: 'auto' }
  for (const node of nodes) setWidgets(node, chosen)
  app.canvas.setDirty(true, true)
  tracker.afterChange()
}

const isOf = (group) => (node) => node.type === PARALLELIZE && !node.mode && getWidget(node, 'group').value === group

const getWidget = (node, name) => node.widgets.find((widget) => widget.name === name)

/** Gives a node that has just become manual the plan that auto had for it, unless a person has set its degrees. */
export function takeAutoPlan(node) {
  const { is_auto: wasAuto, values } = findAnswer(node) ?? {}
  const isSet = Object.keys(ONE_DEVICE).some((axis) => getWidget(node, axis).value !== 1)
  if (isAuto(node) || !wasAuto || !values || isSet) return
  const { mode, ...others } = makeNodeValues(values)
  setWidgets(node, others)
}

function setWidgets(node, values) {
  for (const [name, value] of Object.entries(values)) {
    const widget = getWidget(node, name)
    if (!widget) continue
    widget.value = value
    widget.callback?.(value, app.canvas, node)
  }
}
