// Pure: limits how often a function is called.

/**
 * Returns a function that calls `act` at most once in `pause` milliseconds: at once if it can, else at the end of the
 * pause, once for all calls until then. clock: `now()` returns milliseconds; `wait(act, milliseconds)` calls `act`
 * after that time.
 */
export function throttle(act, pause, clock) {
  let last = Number.NEGATIVE_INFINITY
  let isDue = false
  function actNow() {
    isDue = false
    last = clock.now()
    act()
  }
  return () => {
    if (isDue) return
    const wait = last + pause - clock.now()
    if (wait <= 0) return actNow()
    isDue = true
    clock.wait(actNow, wait)
  }
}
