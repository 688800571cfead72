"""ComfyUI's editor in headless Chromium, under Playwright. Tests get it from the fixtures `browser` and `editor`."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, Route, sync_playwright

from demo.host import ComfyHost

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
VIEWPORT = {"width": 1600, "height": 900}
LOAD_TIMEOUT_MS = 60_000
READY = "() => window.app?.canvas && window.app.extensionManager && !document.querySelector('#splash-loader')"
CONVERT = """async (workflow) => {
    await window.app.loadGraphData(workflow)
    return (await window.app.graphToPrompt()).output
}"""
# What the editor itself asks for in vain, or says, where a user has saved nothing yet.
USUAL_404 = ("/user.css", "/api/userdata")
USUAL_ERRORS = ("Failed to load resource", "graph accessed before initialization")  # the first comes with each 404


def browser_path() -> str | None:
    """The browser to use: $CHROMIUM, or the first one on the PATH, if there is any."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Editor:
    """A page with the editor of a running host.

    `problems` collects errors on the console, uncaught exceptions, refused or failed requests, and requests to anywhere
    but the host, which are not let through.
    """

    def __init__(self, page: Page, host: ComfyHost) -> None:
        self.page = page
        self.problems: list[str] = []
        self._url = host.url
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        page.on("response", self._on_response)
        page.on("requestfailed", self._on_failure)
        page.route(lambda url: not url.startswith((host.url, "data:", "blob:")), self._on_foreign)
        page.goto(host.url, timeout=LOAD_TIMEOUT_MS)
        page.wait_for_function(READY, timeout=LOAD_TIMEOUT_MS)

    def prompt(self, workflow: dict) -> dict[str, Any]:
        """Opens a workflow; returns the prompt that the editor would queue, in API format, subgraphs unfolded."""
        return self.page.evaluate(CONVERT, workflow)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(usual in message.text for usual in USUAL_ERRORS):
            self.problems.append(f"console: {message.text}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and not self._usual(response.url):
            self.problems.append(f"HTTP {response.status}: {response.url}")

    def _on_failure(self, request: Request) -> None:
        if not self._usual(request.url):
            self.problems.append(f"{request.failure}: {request.url}")

    def _on_foreign(self, route: Route) -> None:
        self.problems.append(f"not the host: {route.request.url}")
        route.abort()

    def _usual(self, url: str) -> bool:
        return url.removeprefix(self._url).startswith(USUAL_404)


@contextlib.contextmanager
def open_editor(browser: Browser, host: ComfyHost) -> Iterator[Editor]:
    """The editor in a fresh profile."""
    with contextlib.closing(browser.new_context(viewport=VIEWPORT)) as context:
        yield Editor(context.new_page(), host)
