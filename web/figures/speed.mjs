// Pure: says how long a step takes, and how many times as fast as on one device that is. All views use these words.

import { formatSeconds, formatSpeedup } from '../panel/format.mjs'

const EVEN = 0.05 // a factor this close to 1 says nothing

/** Returns a factor's words under a path, which has `factor` and `even`. */
export function describeFactor(factor, path, say) {
  if (Math.abs(factor - 1) < EVEN) return say(`${path}.even`)
  return say(`${path}.factor`, { times: formatSpeedup(factor) })
}

/**
 * Describes a step: "0.42 s a step, 1.7× as fast as one device (measured)". seconds: of the step. alone: of a step on
 * one device; null if it is not to be compared. isRun, isAloneRun: whether each has run, and took that long. What has run
 * is not compared with what is predicted. isMeasured: whether predictions use this machine's measurements.
 */
export function describeSpeed({ seconds, alone, isRun, isAloneRun, isMeasured }, say) {
  const step = say('plan.speed.step', { seconds: formatSeconds(seconds) })
  const factor = alone && isRun === Boolean(isAloneRun) ? describeFactor(alone / seconds, 'plan.speed', say) : null
  const words = factor ? say('plan.speed.both', { step, factor }) : step
  return say(`plan.speed.${isRun ? 'measured' : isMeasured ? 'predicted' : 'assumed'}`, { words })
}
