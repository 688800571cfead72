// Pure: makes readable texts of the event of a failed node.

const DETAILS = '\n\nDetails:\n'

/**
 * Splits an error's text into {cause, advice, details}. `parallel_backend/errors.py` writes it so: one paragraph each,
 * and the details under a line of their own. Advice and details may be empty.
 */
export function splitFields(text) {
  const [head, ...details] = text.trim().split(DETAILS)
  const [cause, ...advice] = head.split(/\n{2,}/)
  return { cause, advice: advice.join('\n'), details: details.join(DETAILS) }
}

/** The kind of each error class, by its name in `exception_type`. */
export const KINDS = {
  'paralleldit.WorkerGroupError': 'group',
  'paralleldit.NoWorkerGroup': 'group',
  'paralleldit.OutOfMemory': 'memory',
  'paralleldit.RequestRefused': 'refused',
  'paralleldit.UnsendableError': 'refused',
  'paralleldit.SettingsError': 'settings',
  'paralleldit.PlanError': 'plan',
  'paralleldit.ModelFileError': 'file',
  'paralleldit.NoDenoiser': 'file',
  'paralleldit.UnknownModelError': 'model',
  'paralleldit.RequestError': 'refused',
  'paralleldit.Refused': 'refused'
}

/**
 * Returns the kind of an `execution_error`, a key of `errors.titles`; null for an error that is not this pack's.
 *
 * pack: the name of its folder. Any other error in the pack's code, or at one of its nodes, is `unforeseen`.
 */
export function classifyError({ exception_type: type, node_type: node, traceback = [] }, pack) {
  if (KINDS[type]) return KINDS[type]
  const own = (traceback.at(-1) ?? '').replaceAll('\\', '/').includes(`/custom_nodes/${pack}/`)
  return own || (traceback.length && node.startsWith('ParallelDiT_')) ? 'unforeseen' : null
}

/** Returns {cause, advice, details} of an `execution_error`. Advice and details may be empty. */
export function describeError({ exception_type: type, exception_message: message, traceback = [] }, kind) {
  if (kind !== 'unforeseen') return splitFields(message)
  return { cause: `${type.split('.').at(-1)}: ${message.trim()}`, advice: '', details: traceback.join('').trimEnd() }
}

/** Returns the whole error as text, for a bug report. */
export function formatReport(title, { cause, advice, details }) {
  return [title, cause, advice, details].filter(Boolean).join('\n\n')
}
