// Pure: from the server's answer about a plan to what steps are predicted to take, in words.

import { bytes, planWords, seconds } from '../panel/format.mjs'

const EVEN = 0.005 // a factor that is nearer to 1 is told as none

/** A title, and a line for each of the best plans and for the one at hand, if it is none of them; null for nothing. */
export function predictedWords({ predicted }, say) {
  if (!predicted) return null
  const line = ({ values, seconds: length, bytes: size, fits }) => {
    const numbers = { plan: planWords(values, say), seconds: seconds(length), bytes: bytes(size) }
    return say(fits ? 'plan.predicted' : 'plan.predicted_too_large', numbers)
  }
  const chosen = predicted.best.findIndex(({ plan }) => plan === predicted.plan?.plan)
  return {
    step: stepWords(predicted, say),
    title: say(predicted.is_measured ? 'plan.fastest' : 'plan.fastest_assumed'),
    best: predicted.best.map(line),
    chosen,
    own: chosen < 0 && predicted.plan ? say('plan.this_plan', { words: line(predicted.plan) }) : null,
    alone: predicted.alone ? say('plan.alone') : null
  }
}

/** Why nothing is predicted of a known model; null where something is, or no model is known. */
export function unpredictedWords({ memory, predicted, sized }, say) {
  if (!memory || predicted) return null
  return say(sized ? 'plan.step_uncounted' : 'plan.step_unsized')
}

/** How long a step of the plan takes, beside one device, and how each is known. */
function stepWords({ plan, one_device, is_measured }, say) {
  if (!plan) return say('plan.step_unknown')
  const how = ({ has_run }) => say(has_run ? 'plan.has_run' : is_measured ? 'plan.is_predicted' : 'plan.is_assumed')
  const own = { seconds: seconds(plan.seconds), how: how(plan) }
  if (plan.plan === one_device.plan) return say('plan.step', own)
  if (!one_device.fits) return say('plan.step_alone_lacks', own)
  const factor = one_device.seconds / plan.seconds
  const rounded = Math.abs(factor - 1) < EVEN ? '1' : factor.toFixed(factor < 10 ? 2 : 1)
  const words = own.how === how(one_device) ? 'plan.step_factor_alike' : 'plan.step_factor'
  return say(words, { ...own, factor: rounded, one: seconds(one_device.seconds), one_how: how(one_device) })
}
