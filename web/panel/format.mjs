// Pure: formats numbers, names and plans for the panel.

const MEBIBYTE = 2 ** 20
const GIBIBYTE = 2 ** 30
// The fields of a plan that are no degrees. All others are degrees, the outermost axis first.
const NO_AXES = [
  'patches',
  'sync_steps',
  'attention',
  'compile',
  'exchange_dtype',
  'balance',
  'weights',
  'weight_blocks',
  'speeds'
]

/** Formats bytes: "412 MiB", "1.2 GiB", "128 GiB". */
export function formatBytes(count) {
  if (count < GIBIBYTE) return `${Math.round(count / MEBIBYTE)} MiB`
  const gibibytes = count / GIBIBYTE
  return `${gibibytes.toFixed(gibibytes < 100 ? 1 : 0)} GiB`
}

/**
 * Formats "20.5 of 23.6 GiB", "812 MiB of 15.6 GiB": one unit stands only once. say: makes the words from the two
 * texts.
 */
export function formatBytesOf(used, total, say) {
  const [[amount, unit], [, whole]] = [formatBytes(used), formatBytes(total)].map((words) => words.split(' '))
  return say(unit === whole ? amount : `${amount} ${unit}`, formatBytes(total))
}

// Words in a card's name that do not tell cards of one machine apart.
const OF_THE_MAKER = /\((R|TM)\)|\b(NVIDIA|GeForce|AMD|Radeon|Intel|Tesla|Graphics|Generation)\b/g

/** Shortens "NVIDIA GeForce RTX 4090" to "RTX 4090". */
export const shortenCardName = (name) => name.replace(OF_THE_MAKER, '').replace(/\s+/g, ' ').trim() || name

/** Formats seconds: "3 ms", "0.42 s", "6 s", "12.3 s", "2 min 5 s". Who counts whole seconds rounds them up before. */
export function formatSeconds(count) {
  if (count < 0.0995) return `${Math.round(count * 1000)} ms`
  const rounded = Number(count.toFixed(count < 10 ? 2 : 1))
  if (rounded < 60) return `${rounded} s`
  const whole = Math.round(count)
  return `${Math.floor(whole / 60)} min ${whole % 60} s`
}

/** Formats a share: "18%". */
export const formatPercent = (share) => `${Math.round(share * 100)}%`

const OF_24_HOURS = { hourCycle: 'h23' }

/** Formats a time in the browser's time zone, as the language writes it: "15:04:05". */
export const formatTime = (date, language) => date.toLocaleTimeString(language, OF_24_HOURS)

/** Formats a time with its date. */
export const formatDateAndTime = (date, language) => date.toLocaleString(language, OF_24_HOURS)

/** Returns the last part of a path with slashes or backslashes. */
export const getFileName = (path) => path.split(/[\\/]/).pop()

/** Returns communication's share of a run's steps. steps: each [seconds, its communication seconds]. */
export function computeShare(steps) {
  const sum = (column) => steps.reduce((total, step) => total + step[column], 0)
  return sum(0) > 0 ? sum(1) / sum(0) : 0
}

/** Formats a speedup: "0.04", "1.8", "12". */
export const formatSpeedup = (factor) => factor.toFixed(factor < 0.095 ? 2 : factor < 9.95 ? 1 : 0)

/** Formats speeds relative to the fastest: "1:0.5". */
const formatSpeeds = (speeds) => speeds.map((speed) => Number((speed / Math.max(...speeds)).toPrecision(3))).join(':')

/** Returns how many ranks a plan uses. */
export const countRanks = (plan) =>
  Object.keys(plan).reduce((ranks, name) => (NO_AXES.includes(name) ? ranks : ranks * plan[name]), 1)

/** Describes a plan, with the field names of its Python class. t: finds the texts. */
export function describePlan(plan, t) {
  const axes = Object.keys(plan).filter((name) => !NO_AXES.includes(name) && plan[name] > 1)
  const parts = axes.map((axis) => `${axis}=${plan[axis]}`)
  const patches = plan.patches || plan.pipefusion || 1
  if (patches > 1) parts.push(t('panel.planPatches', { patches, steps: plan.sync_steps }))
  if (plan.pipefusion > 1 && plan.balance === 'memory') parts.push(t('panel.planByMemory'))
  if (plan.attention && plan.attention !== 'auto') parts.push(t('panel.planAttention', { name: plan.attention }))
  if (plan.weights && plan.weights !== 'auto') {
    const key = plan.weight_blocks ? 'panel.planWeightsOf' : 'panel.planWeights'
    parts.push(t(key, { name: plan.weights, blocks: plan.weight_blocks }))
  }
  if (plan.compile && plan.compile !== 'off') parts.push(t(`panel.planCompiled.${plan.compile}`))
  if (plan.exchange_dtype && plan.exchange_dtype !== 'model')
    parts.push(t('panel.planExchange', { name: plan.exchange_dtype }))
  if (plan.speeds?.length) parts.push(t('panel.planSpeeds', { speeds: formatSpeeds(plan.speeds) }))
  return parts.join(' × ') || t('panel.planOneRank')
}

/** Describes a run's plans, in order; "auto" before one is chosen. */
export const describePlans = (plans, t) => plans.map((plan) => describePlan(plan, t)).join(', ') || 'auto'
