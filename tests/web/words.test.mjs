import assert from 'node:assert/strict'
import test from 'node:test'

import { findText, translate } from '../../web/words.mjs'

const zh = { panel: { stop: '停止' } }
const en = { panel: { stop: 'Stop', step: 'Step {step} of {total}' } }

test('words are in the first language that has them', () => {
  assert.equal(findText([zh, en], 'panel.stop'), '停止')
  assert.equal(findText([zh, en], 'panel.step', { step: 3, total: 20 }), 'Step 3 of 20')
})

test('what no language has is shown by its name, and what is not given stays to be seen', () => {
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

test('a text that was made of an English template is told in the first language that has it', () => {
  assert.equal(tell('Queue it again.', CHINESE), '请重试。')
  assert.equal(tell('Use ulysses=2 or 4, or ring=3.', CHINESE), '请用 ring=3 或 ulysses=2 or 4。')
  assert.equal(tell('Queue it again.', {}), 'Queue it again.')
  assert.equal(tell('Use cfg=2, or ring=3.'), 'Use cfg=2, or ring=3.')
})

test('of two templates, the one with more words of its own is the one that a text was made of', () => {
  assert.equal(tell('Use patches=1, or ring=4 or ulysses (exact).', CHINESE), '请用ring=4。')
})

test('a text that was made of none stays, and so does one that only holds one', () => {
  for (const text of ['Use ring=2.', 'Then: Queue it again.', 'Queue it again!', '', 'Queue it againX']) {
    assert.equal(tell(text, CHINESE), text)
  }
  assert.equal(translate([], 'advices', 'Queue it again.'), 'Queue it again.') // before any text is there
})
