// Pure: says in one line what a plan does: "2 GPUs · ulysses=2 · 1.7× as fast as one".

import { describeFit } from '../figures/memory.mjs'
import * as speed from '../figures/speed.mjs'
import { describeMissing } from '../plan/files.mjs'

/**
 * Returns the line's `text`, and as `mark` whether something in it needs a person: 'bad' for what does not run or fit,
 * 'warn' for what is not known, or null. Null if there is nothing to say. answer: the
 * server's. summarize: shortens an error's text. say: `t`.
 */
export function describeLine(answer, summarize, say) {
  if (answer.error) return { text: summarize(answer.error), mark: 'bad' }
  const missing = describeMissing(answer, say)
  if (missing) return { text: missing, mark: 'warn' }
  if (!answer.plan) {
    const [unknown] = answer.unknown
    return unknown ? { text: summarize(unknown), mark: 'warn' } : { text: say('plan.auto_open'), mark: null }
  }
  const count = answer.world
  const kind = `plan.line.${answer.device === 'cpu' ? 'cpu' : 'gpu'}${count === 1 ? '' : 's'}`
  const lacks = describeFit(answer, say)?.lacks
  const [at, of] = answer.tried ?? []
  const devices = say(kind, { count })
  const plan = count > 1 ? answer.plan : devices
  const parts = [
    (count > 1 || !at) && devices,
    at ? say('plan.trying', { plan, at, of }) : count > 1 && plan,
    lacks ? say('plan.line.lacks') : describeFactor(answer, say)
  ]
  const text = parts.filter(Boolean).join(' · ')
  return { text, mark: lacks ? 'bad' : answer.unknown.length ? 'warn' : null }
}

/** Says how many times as fast as one device; '' if that is not known, or if the plan is one device. */
function describeFactor({ predicted, world }, say) {
  const { plan, one_device: alone } = predicted ?? {}
  const isAlike = alone?.has_run ? plan?.has_run : alone?.fits && !plan?.has_run
  if (world === 1 || !plan?.seconds || !isAlike) return ''
  return speed.describeFactor(alone.seconds / plan.seconds, 'plan.line', say)
}
