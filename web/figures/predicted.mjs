// Pure: describes how long steps are predicted to take, from the server's answer about a plan.

import { describePlan, describePlans, formatBytes, formatSeconds } from '../panel/format.mjs'
import { describeSpeed } from './speed.mjs'

/** Returns a title, a line for each of the best plans (`text`, and whether it `fits`), and a line for this plan if it is
 * not among them; null without a prediction. */
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
    best: predicted.best.map((each) => ({ text: line(each), fits: each.fits })),
    chosen,
    own: chosen < 0 && predicted.plan ? say('plan.this_plan', { words: line(predicted.plan) }) : null
  }
}

/** Says how the last run of a node went: its plan, and what a step took. */
export function describeRan(run, say) {
  const plan = run.is_stock ? say('panel.asStock') : describePlans(run.plans, say)
  const { usual: seconds } = run
  if (!seconds) return say('plan.ran', { words: plan })
  const step = describeSpeed({ seconds, alone: run.alone, isRun: true, isAloneRun: run.is_alone_run }, say)
  return say('plan.ran', { words: `${plan}, ${step}` })
}

/** Says why there is no prediction for a known model; null if there is one, or if the model is not known. */
export function explainNoPrediction({ memory, predicted, sized }, say) {
  if (!memory || predicted) return null
  return say(sized ? 'plan.step_uncounted' : 'plan.step_unsized')
}

/** Says how long a step takes with the plan, and how many times as fast as on one device, if that has the memory. */
function describeStep({ plan, one_device: one, is_measured: isMeasured }, say) {
  const alone = !plan.is_alone && (one.has_run || one.fits) ? one.seconds : null
  const known = { seconds: plan.seconds, alone, isRun: plan.has_run, isAloneRun: one.has_run, isMeasured }
  const words = describeSpeed(known, say)
  return plan.is_alone || one.fits || one.has_run ? words : say('plan.step_alone_lacks', { words })
}
