// Pure: does something as often as it is asked for, but no oftener than once in a while.

/**
 * Returns `soon()`, upon which `act` is called: at once if that was not done for `pause` milliseconds, else when they
 * are over, once for all calls till then. clock: `now` in milliseconds, and `later`, which calls a function after so many.
 */
export function paced(act, pause, clock) {
  let last = Number.NEGATIVE_INFINITY
  let isDue = false
  function acts() {
    isDue = false
    last = clock.now()
    act()
  }
  return () => {
    if (isDue) return
    const wait = last + pause - clock.now()
    if (wait <= 0) return acts()
    isDue = true
    clock.later(acts, wait)
  }
}
