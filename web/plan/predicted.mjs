// Pure: describes how long steps are predicted to take, from the server's answer about a plan.

import { describePlan, formatBytes, formatSeconds } from '../panel/format.mjs'

const EVEN = 0.005 // a factor this close to 1 is shown as 1

/** Returns a title, a line for each of the best plans, and a line for this plan if it is not among them; null without a
 * prediction. */
export function describePrediction({ predicted }, say) {
  if (!predicted) return null
  const line = ({ values, seconds: length, bytes: size, fits }) => {
    const numbers = { plan: describePlan(values, say), seconds: formatSeconds(length), bytes: formatBytes(size) }
    return say(fits ? 'plan.predicted' : 'plan.predicted_too_large', numbers)
  }
  const chosen = predicted.best.findIndex(({ plan }) => plan === predicted.plan?.plan)
  return {
    step: describeStep(predicted, say),
    title: say(predicted.is_measured ? 'plan.fastest' : 'plan.fastest_assumed'),
    best: predicted.best.map(line),
    chosen,
    own: chosen < 0 && predicted.plan ? say('plan.this_plan', { words: line(predicted.plan) }) : null,
    alone: predicted.alone ? say('plan.alone') : null
  }
}

/** Says why there is no prediction for a known model; null if there is one, or if the model is not known. */
export function explainNoPrediction({ memory, predicted, sized }, say) {
  if (!memory || predicted) return null
  return say(sized ? 'plan.step_uncounted' : 'plan.step_unsized')
}

/** Says how long a step takes with the plan and on one device, and how each is known. */
function describeStep({ plan, one_device, is_measured }, say) {
  if (!plan) return say('plan.step_unknown')
  const how = ({ has_run }) => say(has_run ? 'plan.has_run' : is_measured ? 'plan.is_predicted' : 'plan.is_assumed')
  const own = { seconds: formatSeconds(plan.seconds), how: how(plan) }
  if (plan.plan === one_device.plan) return say('plan.step', own)
  if (!one_device.fits) return say('plan.step_alone_lacks', own)
  const factor = one_device.seconds / plan.seconds
  const rounded = Math.abs(factor - 1) < EVEN ? '1' : factor.toFixed(factor < 10 ? 2 : 1)
  const words = own.how === how(one_device) ? 'plan.step_factor_alike' : 'plan.step_factor'
  return say(words, { ...own, factor: rounded, one: formatSeconds(one_device.seconds), one_how: how(one_device) })
}
