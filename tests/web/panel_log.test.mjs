import assert from 'node:assert/strict'
import test from 'node:test'

import { addEvent, addRead, joinOverlapping, LINES, openLog } from '../../web/panel/log.mjs'

test('lines that come while the log is read are neither lost nor repeated', () => {
  const log = addEvent(addRead(addEvent(openLog(), 'c\nd'), 'a\nb\nc\n'), 'd\ne')
  assert.deepEqual(log.lines, ['a', 'b', 'c', 'd', 'e'])
})

test('only the first event after the reading may overlap what was read', () => {
  const log = addEvent(addEvent(addRead(openLog(), 'a\nb'), 'b\nc'), 'c\nc')
  assert.deepEqual(log.lines, ['a', 'b', 'c', 'c', 'c'])
})

test('parts are joined at the longest overlap', () => {
  assert.deepEqual(joinOverlapping(['x', 'a', 'a'], ['a', 'a', 'b']), ['x', 'a', 'a', 'b'])
  assert.deepEqual(joinOverlapping(['a'], ['b']), ['a', 'b'])
  assert.deepEqual(joinOverlapping([], ['b']), ['b'])
})

test('a log is bounded, and keeps its end', () => {
  const many = Array.from({ length: LINES }, (_, at) => `line ${at}`).join('\n')
  const log = addEvent(addEvent(addRead(openLog(), many), 'more'), 'most')
  assert.equal(log.lines.length, LINES)
  assert.deepEqual([log.lines[0], log.lines.at(-1)], ['line 2', 'most'])
})

test('an empty line counts as a line, and an empty text as none', () => {
  assert.deepEqual(addRead(openLog(), '').lines, [])
  assert.deepEqual(addRead(openLog(), 'a\n\nb\n').lines, ['a', '', 'b'])
})
