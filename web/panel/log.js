// Pure: the last lines of a rank's log, read once and then followed by events.

export const LINES = 500

/** A log that is being read. `end`: how many lines there were in all; `version`: changes where lines are replaced. */
export const opened = () => ({ lines: [], end: 0, version: 0, state: 'reading' })

/** After the log was read, while events may have brought some of the same lines. */
export function read(log, text) {
  const lines = joined(split(text), log.lines)
  return { ...bounded(log, lines), end: lines.length, version: log.version + 1, state: 'fresh' }
}

/** After an event's lines. The first event after the reading may bring lines that were read. */
export function told(log, text) {
  const more = split(text)
  const lines = log.state === 'fresh' ? joined(log.lines, more) : [...log.lines, ...more]
  const state = log.state === 'fresh' ? 'followed' : log.state
  return { ...bounded(log, lines), end: log.end + lines.length - log.lines.length, state }
}

/** Two parts of a log, of which the second may begin before the first has ended. */
export function joined(first, second) {
  for (let shared = Math.min(first.length, second.length); shared > 0; shared--) {
    const start = first.length - shared
    if (second.slice(0, shared).every((line, at) => line === first[start + at])) {
      return [...first, ...second.slice(shared)]
    }
  }
  return [...first, ...second]
}

const split = (text) => (text ? text.replace(/\n$/, '').split('\n') : [])

const bounded = (log, lines) => ({ ...log, lines: lines.slice(-LINES) })
