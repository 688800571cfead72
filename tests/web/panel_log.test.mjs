import assert from 'node:assert/strict'
import test from 'node:test'

import { splitLines } from '../../web/panel/log.mjs'

test('an empty line counts as a line, and an empty text as none', () => {
  assert.deepEqual(splitLines(''), [])
  assert.deepEqual(splitLines('a\n\nb\n'), ['a', '', 'b'])
})
