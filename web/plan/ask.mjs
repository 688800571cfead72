// Pure: asks after a pause, drops answers that another question has overtaken, and asks nothing twice.

/**
 * Returns `ask(force)`: after `pause` milliseconds without another call it reads the question and sends it, unless it
 * is the last one again and `force` was not set. read: gives the question as text, or null for none to send.
 * send: question to a promise of the answer. show: gets the answer; fail: the error.
 */
export function asker({ pause, read, send, show, fail }) {
  let timer = null
  let last
  let forced = false

  async function settle() {
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
    timer = setTimeout(settle, pause)
  }
}
