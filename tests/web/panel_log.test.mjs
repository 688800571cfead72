import assert from 'node:assert/strict'
import test from 'node:test'

import { joined, LINES, opened, read, told } from '../../web/panel/log.mjs'

test('lines that come while the log is read are neither lost nor there twice', () => {
  const log = told(read(told(opened(), 'c\nd'), 'a\nb\nc\n'), 'd\ne')
  assert.deepEqual(log.lines, ['a', 'b', 'c', 'd', 'e'])
})

test('the first event after the reading may bring what was read; a later one repeats itself', () => {
  const log = told(told(read(opened(), 'a\nb'), 'b\nc'), 'c\nc')
  assert.deepEqual(log.lines, ['a', 'b', 'c', 'c', 'c'])
})

test('parts are joined at the longest overlap', () => {
  assert.deepEqual(joined(['x', 'a', 'a'], ['a', 'a', 'b']), ['x', 'a', 'a', 'b'])
  assert.deepEqual(joined(['a'], ['b']), ['a', 'b'])
  assert.deepEqual(joined([], ['b']), ['b'])
})

test('a log is bounded, and keeps its end', () => {
  const many = Array.from({ length: LINES }, (_, at) => `line ${at}`).join('\n')
  const log = told(told(read(opened(), many), 'more'), 'most')
  assert.equal(log.lines.length, LINES)
  assert.deepEqual([log.lines[0], log.lines.at(-1)], ['line 2', 'most'])
})

test('an empty line is a line, and no text is none', () => {
  assert.deepEqual(read(opened(), '').lines, [])
  assert.deepEqual(read(opened(), 'a\n\nb\n').lines, ['a', '', 'b'])
})
