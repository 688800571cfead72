import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import test from 'node:test'

import { findText, joinSentences, selectTrees, translate } from '../../web/words.mjs'

const zh = { panel: { stop: '停止' } }
const en = { panel: { stop: 'Stop', step: 'Step {step} of {total}' } }

test('a text is in the first language that has it', () => {
  assert.equal(findText([zh, en], 'panel.stop'), '停止')
  assert.equal(findText([zh, en], 'panel.step', { step: 3, total: 20 }), 'Step 3 of 20')
})

test('English texts of the server are not translated into English', () => {
  const all = {
    en: { paralleldit: { said: SAID } },
    zh: { paralleldit: { said: CHINESE }, settings: { speed: '速度' } }
  }
  for (const language of ['en', 'en-GB', 'fr']) assert.equal(selectTrees(all, language).length, 1, language)
  const trees = selectTrees(all, 'zh-TW')
  assert.deepEqual(trees, [
    { said: CHINESE, settings: { speed: '速度' } },
    { said: SAID, settings: {} }
  ])
  assert.equal(translate(trees, 'said', SAID.again), CHINESE.again)
})

test('a text without a translation is shown by its name, and a missing value by its placeholder', () => {
  assert.equal(findText([zh, en], 'panel.none.such'), 'panel.none.such')
  assert.equal(findText([en], 'panel'), 'panel')
  assert.equal(findText([en], 'panel.step', { step: 0 }), 'Step 0 of {total}')
})

const SAID = {
  again: 'Queue it again.',
  divisor: 'Use {degrees}, or ring={ring}.',
  patches: 'Use patches=1, or ring={ring} or ulysses (exact).',
  ended: 'It ended while it was {doing}.',
  sampling: 'sampling',
  down: '{why}, so it stays down. The last time: {last}',
  often: 'It died {count} times'
}
const CHINESE = {
  again: '请重试。',
  divisor: '请用 ring={ring} 或 {degrees}。',
  patches: '请用ring={ring}。',
  ended: '它在{doing}时结束。',
  sampling: '采样',
  down: '{why}，不再启动。上一次：{last}',
  often: '已退出 {count} 次'
}
const tell = (text, ...trees) => translate([...trees.map((said) => ({ said })), { said: SAID }], 'said', text)

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
  assert.equal(translate([], 'said', 'Queue it again.'), 'Queue it again.') // before any text is there
})

test('lines and sentences are translated one by one, and those without a template stay', () => {
  assert.equal(tell('Queue it again. Queue it again.', CHINESE), '请重试。请重试。')
  assert.equal(
    tell('Look (here) first. Queue it again. Or not. Or so.', CHINESE),
    'Look (here) first. 请重试。Or not. Or so.'
  )
  assert.equal(tell('Rank 1 died.\nQueue it again.', CHINESE), 'Rank 1 died.\n请重试。')
})

test('what fills a template is translated, too', () => {
  assert.equal(tell('It ended while it was sampling.', CHINESE), '它在采样时结束。')
  const down = 'It died 3 times, so it stays down. The last time: It ended while it was sampling. Queue it again.'
  assert.equal(tell(down, CHINESE), '已退出 3 次，不再启动。上一次：它在采样时结束。请重试。')
  const killed = 'It died 3 times, so it stays down. The last time: Rank 1 (process 7) ended. Queue it again.'
  assert.equal(tell(killed, CHINESE), '已退出 3 次，不再启动。上一次：Rank 1 (process 7) ended. 请重试。')
})

test('the parts of a plan are translated one by one', () => {
  assert.equal(tell('It ended while it was ring=2 × sampling.', CHINESE), '它在ring=2 × 采样时结束。')
  assert.equal(tell('64 × 64', CHINESE), '64 × 64')
})

// As the server joins them.
const SENTENCES = [
  'The worker group ended while it was running the model.\nRank 1 (process 7) was killed by SIGKILL.',
  'The worker group died 4 times in ten minutes, so it stays down for another 512 s. The last time: Rank 1 (process 7) was killed by SIGKILL.\nCorrect the cause, then restart the group or ComfyUI.',
  'The worker group did not start. torchrun (process 7) ended with exit code 7.',
  'The worker group ended between two steps. It was stopped.\nQueue the prompt again.',
  'Rank 1 ran out of memory while it was sampling. It asked for 1.2 GiB more. It used 22.1 GiB of 24.0 GiB, and 307 MiB was free. The request has 4,096 tokens of latents.',
  'auto tries ring=2, 2 of 3.',
  'This sampling runs under ulysses=2 × int4 exchange, not under pipefusion=2, because of the model patch attn1_patch.',
  "Flux runs as stock, on ComfyUI's own device alone. The worker processes cannot run a change of its img_in. Without it, they can. A step takes about 1.2 s on one device and 0.6 s under ulysses=2."
]

test('no English is left of what the server says in the commonest runs', () => {
  const read = (language) => readFileSync(new URL(`../../locales/${language}/main.json`, import.meta.url), 'utf8')
  const trees = ['zh', 'en'].map((language) => JSON.parse(read(language)).paralleldit)
  for (const text of SENTENCES) assert.doesNotMatch(translate(trees, 'said', text), /[a-z]{2,} [a-z]{2,}/)
})

test('after a full-width character, the next sentence follows without a space', () => {
  assert.equal(joinSentences(['请重试。', 'Then wait.', '', '好。']), '请重试。Then wait. 好。')
})
