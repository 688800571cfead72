// Pure: from the event of a failed node to what a person reads of it.

const DETAILS = '\n\nDetails:\n'

/**
 * {cause, advice, details} of an error's text, whose form is that of `parallel_backend/errors.py`: a paragraph each, the
 * last under a line of its own. The last two may be empty.
 */
export function fieldsOf(text) {
  const [head, ...details] = text.trim().split(DETAILS)
  const [cause, ...advice] = head.split(/\n{2,}/)
  return { cause, advice: advice.join('\n'), details: details.join(DETAILS) }
}

/** The kind of each class of errors, by the end of its full name. */
export const KINDS = {
  'worker.errors.WorkerGroupError': 'group',
  'worker.errors.OutOfMemory': 'memory',
  'worker.errors.RequestRefused': 'refused',
  'worker.settings.SettingsError': 'settings',
  'parallel_backend.errors.PlanError': 'plan',
  'parallel_backend.errors.ModelFileError': 'file',
  'parallel_backend.errors.UnknownModelError': 'model',
  'parallel_backend.errors.RequestError': 'refused',
  'nodes.errors.Refused': 'refused',
  'nodes.errors.NotInstalled': 'refused'
}

/**
 * What kind of error of this pack an `execution_error` is, a key of `errors.titles`; null for all others.
 *
 * pack: the name of its folder. What has no class of the pack's is unforeseen in its code, and at its nodes.
 */
export function kindOf({ exception_type: type, node_type: node, traceback = [] }, pack) {
  for (const [name, kind] of Object.entries(KINDS)) if (type.endsWith(`.${name}`)) return kind
  const own = (traceback.at(-1) ?? '').replaceAll('\\', '/').includes(`/custom_nodes/${pack}/`)
  return own || (traceback.length && node.startsWith('ParallelDiT_')) ? 'unforeseen' : null
}

/** {cause, advice, details} of an `execution_error`; the last two may be empty. */
export function explain({ exception_type: type, exception_message: message, traceback = [] }, kind) {
  if (kind !== 'unforeseen') return fieldsOf(message)
  return { cause: `${type.split('.').at(-1)}: ${message.trim()}`, advice: '', details: traceback.join('').trimEnd() }
}

/** The whole error as text, for a report. */
export function report(title, { cause, advice, details }) {
  return [title, cause, advice, details].filter(Boolean).join('\n\n')
}
