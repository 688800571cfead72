"""How many frames the editor shows while nobody touches it."""

from __future__ import annotations

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


def count_frames(page: Page, seconds: float) -> float:
    """A second, of that many seconds from now on."""
    return page.evaluate(COUNT, seconds)
