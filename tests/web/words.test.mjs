import assert from 'node:assert/strict'
import test from 'node:test'

import { words } from '../../web/words.js'

const zh = { panel: { stop: '停止' } }
const en = { panel: { stop: 'Stop', step: 'Step {step} of {total}' } }

test('words are in the first language that has them', () => {
  assert.equal(words([zh, en], 'panel.stop'), '停止')
  assert.equal(words([zh, en], 'panel.step', { step: 3, total: 20 }), 'Step 3 of 20')
})

test('what no language has is shown by its name, and what is not given stays to be seen', () => {
  assert.equal(words([zh, en], 'panel.none.such'), 'panel.none.such')
  assert.equal(words([en], 'panel'), 'panel')
  assert.equal(words([en], 'panel.step', { step: 0 }), 'Step 0 of {total}')
})
