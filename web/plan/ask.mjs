// Pure: asks after a pause, asks no question twice, and drops an answer if a newer question was sent since.

/**
 * Returns `ask(force)`. After `pause` milliseconds without another call it reads the question and sends it. It does not
 * send the last question again, unless `force` is set. read: returns the question as text, or null to send none.
 * send: takes the question and returns a promise of the answer. show: takes the answer. fail: takes the error.
 */
export function makeAsker({ pause, read, send, show, fail }) {
  let timer = null
  let last
  let forced = false

  async function askNow() {
    timer = null
    const question = read()
    if (question === null || (question === last && !forced)) return
    forced = false
    last = question
    try {
      const answer = await send(question)
      if (last === question) show(answer)
    } catch (error) {
      if (last !== question) return
      last = undefined
      fail(error)
    }
  }

  return (force = false) => {
    forced ||= force
    clearTimeout(timer)
    timer = setTimeout(askNow, pause)
  }
}
