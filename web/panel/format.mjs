// Pure: numbers and names as the panel shows them.

const MEBIBYTE = 2 ** 20
const GIBIBYTE = 2 ** 30
// Of a plan; all else are degrees, the outermost axis first.
const NO_AXES = [
  'patches',
  'sync_steps',
  'attention',
  'compile',
  'exchange_dtype',
  'weights',
  'weight_blocks',
  'speeds'
]

/** "412 MiB", "1.2 GiB", "128 GiB". */
export function bytes(count) {
  if (count < GIBIBYTE) return `${Math.round(count / MEBIBYTE)} MiB`
  const gibibytes = count / GIBIBYTE
  return `${gibibytes.toFixed(gibibytes < 100 ? 1 : 0)} GiB`
}

/** "20.5 of 23.6 GiB", "812 MiB of 15.6 GiB": the unit once where it is the same. said: the words, of two texts. */
export function bytesOf(used, total, said) {
  const [[amount, unit], [, whole]] = [bytes(used), bytes(total)].map((words) => words.split(' '))
  return said(unit === whole ? amount : `${amount} ${unit}`, bytes(total))
}

// What a maker adds to a card's name that no two cards of a machine differ in.
const OF_THE_MAKER = /\((R|TM)\)|\b(NVIDIA|GeForce|AMD|Radeon|Intel|Tesla|Graphics|Generation)\b/g

/** "RTX 4090" of "NVIDIA GeForce RTX 4090". */
export const cardName = (name) => name.replace(OF_THE_MAKER, '').replace(/\s+/g, ' ').trim() || name

/** "3 ms", "0.42 s", "12.3 s", "2 min 5 s". */
export function seconds(count) {
  if (count < 0.1) return `${Math.round(count * 1000)} ms`
  if (count < 10) return `${count.toFixed(2)} s`
  return count < 60 ? `${count.toFixed(1)} s` : roughSeconds(count)
}

/** "6 s", "2 min 5 s". */
export function roughSeconds(count) {
  const whole = Math.ceil(count)
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`
}

/** "18%". */
export const percent = (share) => `${Math.round(share * 100)}%`

const OF_24_HOURS = { hourCycle: 'h23' }

/** "15:04:05", as the language writes it, in the browser's time zone. */
export const clock = (date, language) => date.toLocaleTimeString(language, OF_24_HOURS)

/** The same, with the date. */
export const dateAndClock = (date, language) => date.toLocaleString(language, OF_24_HOURS)

/** The last part of a path, of either kind. */
export const fileName = (path) => path.split(/[\\/]/).pop()

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
}

/** Of a run's steps, each [seconds, seconds of it in communication]: the median, and communication's share of all. */
export function summary(steps) {
  if (!steps.length) return null
  const sum = (column) => steps.reduce((total, step) => total + step[column], 0)
  return { median: median(steps.map(([length]) => length)), share: sum(0) > 0 ? sum(1) / sum(0) : 0 }
}

/** How many times as fast as one device a run's median step was; null where that is not known. */
export function timesOfOne({ alone, steps }) {
  const known = summary(steps)
  return alone && known?.median ? alone / known.median : null
}

/** "1.8", "12". */
export const times = (factor) => (factor < 9.95 ? factor.toFixed(1) : String(Math.round(factor)))

/** About how many seconds a run still takes; null where that is not known. */
export function secondsLeft(run) {
  const known = run?.at && summary(run.steps)
  return known ? (Math.max(0, run.total - run.at) * known.median * run.made) / run.at : null
}

/** "1:0.5": speeds, the fastest being 1. */
const inProportion = (speeds) => speeds.map((speed) => Number((speed / Math.max(...speeds)).toPrecision(3))).join(':')

/** How many ranks a plan has. */
export const ranksOfPlan = (plan) =>
  Object.keys(plan).reduce((ranks, name) => (NO_AXES.includes(name) ? ranks : ranks * plan[name]), 1)

/** A plan's values in the words of its Python class. t: the texts, by path and values. */
export function planWords(plan, t) {
  const axes = Object.keys(plan).filter((name) => !NO_AXES.includes(name) && plan[name] > 1)
  const parts = axes.map((axis) => `${axis}=${plan[axis]}`)
  const patches = plan.patches || plan.pipefusion || 1
  if (patches > 1) parts.push(t('panel.planPatches', { patches, steps: plan.sync_steps }))
  if (plan.attention && plan.attention !== 'auto') parts.push(t('panel.planAttention', { name: plan.attention }))
  if (plan.weights && plan.weights !== 'auto') {
    const key = plan.weight_blocks ? 'panel.planWeightsOf' : 'panel.planWeights'
    parts.push(t(key, { name: plan.weights, blocks: plan.weight_blocks }))
  }
  if (plan.compile && plan.compile !== 'off') parts.push(t(`panel.planCompiled.${plan.compile}`))
  if (plan.exchange_dtype === 'fp8') parts.push(t('panel.planExchange', { name: plan.exchange_dtype }))
  if (plan.speeds?.length) parts.push(t('panel.planSpeeds', { speeds: inProportion(plan.speeds) }))
  return parts.join(' × ') || t('panel.planOneRank')
}

/** The plans that a run had, one after the other; "auto" before one is chosen. */
export const plansWords = (plans, t) => plans.map((plan) => planWords(plan, t)).join(', ') || 'auto'
