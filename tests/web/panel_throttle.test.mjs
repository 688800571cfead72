import assert from 'node:assert/strict'
import test from 'node:test'

import { throttle } from '../../web/panel/throttle.mjs'

function watched() {
  const later = []
  const clock = { time: 0, now: () => clock.time, wait: (act, wait) => later.push([clock.time + wait, act]) }
  let drawn = 0
  const soon = throttle(() => drawn++, 350, clock)
  const pass = (milliseconds) => {
    for (const end = clock.time + milliseconds; clock.time < end; clock.time++) {
      while (later.length && later[0][0] <= clock.time) later.shift()[1]()
    }
  }
  return { soon, pass, drawn: () => drawn }
}

test('the first call draws at once, and the calls within the pause draw once after it', () => {
  const { soon, pass, drawn } = watched()
  soon()
  assert.equal(drawn(), 1)
  for (let times = 0; times < 3; times++) soon()
  pass(340)
  assert.equal(drawn(), 1)
  pass(20)
  assert.equal(drawn(), 2)
  pass(1000)
  assert.equal(drawn(), 2, 'nothing has come')
})

test('eight events a second are at most three drawings a second, and the last event is drawn', () => {
  const { soon, pass, drawn } = watched()
  for (let event = 0; event < 80; event++) {
    soon()
    pass(125)
  }
  assert.ok(drawn() >= 20 && drawn() <= 30, `${drawn()} in ten seconds`)
  const before = drawn()
  soon()
  pass(400)
  assert.ok(drawn() > before)
})
