import assert from 'node:assert/strict'
import test from 'node:test'

import { findText, translate } from '../../web/words.mjs'

const zh = { panel: { stop: '停止' } }
const en = { panel: { stop: 'Stop', step: 'Step {step} of {total}' } }

test('a text is in the first language that has it', () => {
  assert.equal(findText([zh, en], 'panel.stop'), '停止')
  assert.equal(findText([zh, en], 'panel.step', { step: 3, total: 20 }), 'Step 3 of 20')
})

test('a text without a translation is shown by its name, and a missing value by its placeholder', () => {
  assert.equal(findText([zh, en], 'panel.none.such'), 'panel.none.such')
  assert.equal(findText([en], 'panel'), 'panel')
  assert.equal(findText([en], 'panel.step', { step: 0 }), 'Step 0 of {total}')
})

const ADVICES = {
  again: 'Queue it again.',
  divisor: 'Use {degrees}, or ring={ring}.',
  patches: 'Use patches=1, or ring={ring} or ulysses (exact).'
}
const CHINESE = { again: '请重试。', divisor: '请用 ring={ring} 或 {degrees}。', patches: '请用ring={ring}。' }
const tell = (text, ...trees) =>
  translate([...trees.map((advices) => ({ advices })), { advices: ADVICES }], 'advices', text)

test('a text made from an English template is shown in the first language that has the template', () => {
  assert.equal(tell('Queue it again.', CHINESE), '请重试。')
  assert.equal(tell('Use ulysses=2 or 4, or ring=3.', CHINESE), '请用 ring=3 或 ulysses=2 or 4。')
  assert.equal(tell('Queue it again.', {}), 'Queue it again.')
  assert.equal(tell('Use cfg=2, or ring=3.'), 'Use cfg=2, or ring=3.')
})

test('of two templates that match a text, the one with more words of its own counts', () => {
  assert.equal(tell('Use patches=1, or ring=4 or ulysses (exact).', CHINESE), '请用ring=4。')
})

test('a text without a template stays, and so does one that only contains a template', () => {
  for (const text of ['Use ring=2.', 'Then: Queue it again.', 'Queue it again!', '', 'Queue it againX']) {
    assert.equal(tell(text, CHINESE), text)
  }
  assert.equal(translate([], 'advices', 'Queue it again.'), 'Queue it again.') // before any text is there
})
