"""What the editor costs the browser while nobody touches it: frames that it shows, and its main thread's time."""

from __future__ import annotations

from typing import NamedTuple

from playwright.sync_api import Page

COUNT = """(seconds) => new Promise((resolve) => {
    const began = performance.now()
    let frames = -1
    function frame() {
        frames++
        const passed = performance.now() - began
        if (passed < 1000 * seconds) requestAnimationFrame(frame)
        else resolve(1000 * frames / passed)
    }
    requestAnimationFrame(frame)
})"""


class Cost(NamedTuple):
    """frames: a second. main_thread: seconds of tasks a second."""

    frames: float
    main_thread: float


def cost(page: Page, seconds: float) -> Cost:
    """Of that many seconds from now on."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def tasks() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    before = tasks()
    frames = page.evaluate(COUNT, seconds)
    spent = tasks() - before
    session.detach()
    return Cost(frames, spent / seconds)
