// Pure: asks after a pause, asks no question twice, and drops an answer that is out of date.

/**
 * Returns `ask(force)`. After `pause` milliseconds without another call it reads the question and sends it. It does not
 * send the last question again, unless `force` is set. An answer is out of date once a newer question was sent, or
 * `force` was set. read: returns the question as text, or null to send none. send: takes the question and returns a
 * promise of the answer. show: takes the answer. fail: takes the error.
 */
export function makeAsker({ pause, read, send, show, fail }) {
  let timer = null
  let last
  let forced = false
  let newest = 0

  async function askNow() {
    timer = null
    const question = read()
    if (question === null || (question === last && !forced)) return
    forced = false
    last = question
    const own = ++newest
    try {
      const answer = await send(question)
      if (own === newest) show(answer)
    } catch (error) {
      if (own !== newest) return
      last = undefined
      fail(error)
    }
  }

  return (force = false) => {
    forced ||= force
    if (force) newest++
    clearTimeout(timer)
    timer = setTimeout(askNow, pause)
  }
}
