// Pure: keeps the last lines of a rank's log. They are read once, and events add to them.

export const LINES = 500

/** Returns a log that waits for its first reading. */
export const openLog = () => ({ lines: [], state: 'reading' })

/** Adds the text that was read. Events may have brought some of its lines before. */
export function addRead(log, text) {
  return { lines: keepLast(joinOverlapping(splitLines(text), log.lines)), state: 'fresh' }
}

/** Adds an event's lines. The first event after the reading may repeat lines that were read. */
export function addEvent(log, text) {
  const more = splitLines(text)
  const lines = log.state === 'fresh' ? joinOverlapping(log.lines, more) : [...log.lines, ...more]
  return { lines: keepLast(lines), state: log.state === 'fresh' ? 'followed' : log.state }
}

/** Joins two parts of a log. The second may begin with lines that end the first. */
export function joinOverlapping(first, second) {
  for (let shared = Math.min(first.length, second.length); shared > 0; shared--) {
    const start = first.length - shared
    if (second.slice(0, shared).every((line, at) => line === first[start + at])) {
      return [...first, ...second.slice(shared)]
    }
  }
  return [...first, ...second]
}

const PREFIX = /^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d{3} rank \d+ (INFO )?/

/** Returns a line without its date and rank, which the panel shows beside it: "18:52:59 message". */
export const shortenLine = (line) => line.replace(PREFIX, '$1 ')

const splitLines = (text) => (text ? text.replace(/\n$/, '').split('\n') : [])

const keepLast = (lines) => lines.slice(-LINES)
