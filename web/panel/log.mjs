// Pure: the lines of a rank's log.

/** Returns the lines of a text. */
export const splitLines = (text) => (text ? text.replace(/\n$/, '').split('\n') : [])

const PREFIX = /^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d{3} rank \d+ (INFO )?/

/** Returns a line without its date and rank, which the panel shows beside it: "18:52:59 message". */
export const shortenLine = (line) => line.replace(PREFIX, '$1 ')
