// Pure: from the server's answer about a plan to what steps are predicted to take, in words.

import { bytes, seconds } from '../panel/format.js'

/** A title, and a line for each of the best plans and for the one at hand, if it is none of them; null for nothing. */
export function predictedWords({ predicted }, say) {
  if (!predicted) return null
  const line = ({ plan, seconds: length, bytes: size, fits }) => {
    const numbers = { plan, seconds: seconds(length), bytes: bytes(size) }
    return say(fits ? 'plan.predicted' : 'plan.predicted_too_large', numbers)
  }
  const chosen = predicted.best.findIndex(({ plan }) => plan === predicted.plan.plan)
  return {
    title: say(predicted.is_measured ? 'plan.fastest' : 'plan.fastest_assumed'),
    best: predicted.best.map(line),
    chosen,
    own: chosen < 0 ? say('plan.this_plan', { words: line(predicted.plan) }) : null,
    alone: predicted.alone ? say('plan.alone') : null
  }
}
