// Pure: from the event of a failed node to what a person reads of it.

// The form is that of `worker/errors.py`: paragraphs, of which the last is the details, under a line of their own.
const DETAILS = '\n\nDetails:\n'

/** What an error's text says before its details. */
export const beforeDetails = (text) => text.split(DETAILS)[0]

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
}
// How our advice begins.
const ADVICE = [
  'ask|choose|connect|download|install|interrupt|leave|load|lower|mend|put|queue|raise|remove|rename|restart|run|set',
  'shorten|take|unload|update|use|wait',
].join('|')
const SPOKEN = ['ValueError', 'RuntimeError']

/**
 * What kind of error of this pack an `execution_error` is, a key of `errors.titles`; null for all others.
 *
 * pack: the name of its folder. Exceptions of Python's own are in words for people where the pack itself raises them,
 * at whichever node; any other at a node of the pack's is unforeseen.
 */
export function kindOf({ exception_type: type, node_type: node, traceback = [] }, pack) {
  for (const [name, kind] of Object.entries(KINDS)) if (type.endsWith(`.${name}`)) return kind
  const own = (traceback.at(-1) ?? '').replaceAll('\\', '/').includes(`/custom_nodes/${pack}/`)
  if (own && SPOKEN.includes(type)) return 'refused'
  return own || (traceback.length && node.startsWith('ParallelDiT_')) ? 'unforeseen' : null
}

/** {cause, advice, details} of an `execution_error`; the last two may be empty. */
export function explain({ exception_type: type, exception_message: message, traceback = [] }, kind) {
  const text = message.trim()
  if (kind === 'unforeseen') {
    return { cause: `${type.split('.').at(-1)}: ${text}`, advice: '', details: traceback.join('').trimEnd() }
  }
  const [head, ...rest] = text.split(DETAILS)
  const [first, ...others] = head.split(/\n{2,}/)
  const [cause, advice] = others.length ? [first, others.join('\n')] : divided(first)
  const details = rest.join(DETAILS) || (SPOKEN.includes(type) ? traceback.join('').trimEnd() : '')
  return { cause, advice, details }
}

/** Our texts of one paragraph say what cannot be, and after a semicolon or a full stop what to do. */
function divided(text) {
  const found = text.match(new RegExp(`^(.+?)[;.] ((?:${ADVICE})\\b.*)$`, 'is'))
  if (!found) return [text, '']
  const [, cause, advice] = found
  return [`${cause}.`, advice[0].toUpperCase() + advice.slice(1)]
}

/** The whole error as text, for a report. */
export function report(title, { cause, advice, details }) {
  return [title, cause, advice, details].filter(Boolean).join('\n\n')
}
