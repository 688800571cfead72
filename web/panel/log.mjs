// Pure: the last lines of a rank's log, read once and then followed by events.

export const LINES = 500

/** A log that is being read. */
export const opened = () => ({ lines: [], state: 'reading' })

/** After the log was read, while events may have brought some of the same lines. */
export function read(log, text) {
  return { lines: bounded(joined(split(text), log.lines)), state: 'fresh' }
}

/** After an event's lines. The first event after the reading may bring lines that were read. */
export function told(log, text) {
  const more = split(text)
  const lines = log.state === 'fresh' ? joined(log.lines, more) : [...log.lines, ...more]
  return { lines: bounded(lines), state: log.state === 'fresh' ? 'followed' : log.state }
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

const bounded = (lines) => lines.slice(-LINES)
