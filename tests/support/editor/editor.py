"""ComfyUI's editor in headless Chromium, under Playwright. Tests get it from the fixtures `browser` and `editor`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    JSHandle,
    Locator,
    Page,
    Request,
    Response,
    Route,
    ViewportSize,
    expect,
    sync_playwright,
)
from playwright.sync_api import TimeoutError as NotInTime

from demo.host import ComfyHost
from tests.support.host.graphs import ask

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Scripts run once or twice here: to optimise them costs more than it brings.
    "--js-flags=--no-opt --no-maglev",
    # No other address is found. To ask for each request whether it may pass would take the browser its cache, too.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
VIEWPORT = {"width": 1600, "height": 900}
# No animations: a frame costs the browser, which has no GPU, as much as a test's own work.
CONTEXT: dict[str, Any] = {"viewport": VIEWPORT, "reduced_motion": "reduce"}
POLL_MS = 100  # a page that is asked at each of its frames draws them all
PATIENCE_MS = 60_000  # with whatever is to come: a prompt may have to be served first, by a machine that has more to do
TRIES = 10
expect.set_options(timeout=PATIENCE_MS)
# Up, with a workflow open: a first one, or that of before a reload.
READY = """() => window.app?.canvas && window.app.extensionManager && window.app.graph?.nodes.length
    && !document.querySelector('#splash-loader')"""
CONVERT = """async (workflow) => {
    await window.app.loadGraphData(workflow)
    return (await window.app.graphToPrompt()).output
}"""
# What the editor itself asks for in vain, or says, where a user has saved nothing yet.
USUAL_404 = ("/user.css", "/api/userdata")
# The first comes with each 404, the last with files that the default workflow, or an example, lacks here.
USUAL_ERRORS = ("Failed to load resource", "graph accessed before initialization", "https://huggingface.co/")
GIVEN_UP = "net::ERR_ABORTED"  # by the page itself: it is left, or does not read the answer
SCREENSHOTS = Path(__file__).resolve().parents[2] / "screenshots"  # not in the repository
CLOSE_OTHER_TABS = """async () => {
    const store = window.app.extensionManager.workflow
    for (const tab of [...store.openWorkflows]) {
        if (tab.path !== store.activeWorkflow.path) await store.closeWorkflow(tab)
    }
}"""
WIDGETS = """([type, values]) => {
    const node = window.app.graph.nodes.find((node) => node.type === type)
    for (const [name, value] of Object.entries(values)) {
        const widget = node.widgets.find((widget) => widget.name === name)
        widget.value = value
        widget.callback?.(value, window.app.canvas, node)
    }
    return node.id
}"""
PARALLELIZE = "ParallelDiT_Parallelize"
PLAN_NODE = f"window.app.graph.findNodesByType('{PARALLELIZE}')[0]"
PLAN_VALUES = f"(names) => names.map((name) => {PLAN_NODE}.widgets.find((widget) => widget.name === name).value)"
UNDO_STEPS = "() => window.app.extensionManager.workflow.activeWorkflow.changeTracker.undoQueue.length"
FILLS_THE_WINDOW = """([width, height]) => {
    const canvas = window.app.canvas.canvas
    const shown = canvas.getBoundingClientRect()
    const scale = window.devicePixelRatio
    return innerWidth === width && innerHeight === height
        && canvas.width === Math.round(shown.width * scale) && canvas.height === Math.round(shown.height * scale)
}"""
SET_THEME = "(theme) => window.app.extensionManager.setting.set('Comfy.ColorPalette', theme)"


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
    """A page with the editor of a running host, which it opens there.

    `problems` collects errors on the console, uncaught exceptions, and refused or failed requests; one to anywhere but
    the host fails.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.problems: list[str] = []
        self._host = url.partition("/?")[0]
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        page.on("response", self._on_response)
        page.on("requestfailed", self._on_failure)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        wait_for(page, READY)

    def reload(self) -> None:
        """Loads the page anew, as F5 does."""
        self.page.reload()
        wait_for(self.page, READY)

    def prompt(self, workflow: dict) -> dict[str, Any]:
        """Opens a workflow; returns the prompt that the editor would queue, in API format, subgraphs unfolded."""
        return self.page.evaluate(CONVERT, workflow)

    def open(self, workflow: dict) -> None:
        """Opens a workflow in a tab of its own, and has all of it in view."""
        self.page.evaluate("async (workflow) => { await window.app.loadGraphData(workflow) }", workflow)

    def open_alone(self, workflow: dict) -> None:
        """Opens a workflow, and closes the tabs of all others without a question."""
        self.open(workflow)
        self.page.evaluate(CLOSE_OTHER_TABS)

    def resize(self, size: ViewportSize) -> None:
        """Gives the window this size. The canvas follows later, and a workflow opened before that is drawn small."""
        self.page.set_viewport_size(size)
        wait_for(self.page, FILLS_THE_WINDOW, arg=[size["width"], size["height"]])

    def set_widgets(self, node_type: str, **values: Any) -> int:
        """Sets widgets of the node of that type, as turning them by hand does; returns its id."""
        return self.page.evaluate(WIDGETS, [node_type, values])

    def set_plan(self, **values: Any) -> None:
        """Sets widgets of Parallelize Model."""
        self.set_widgets(PARALLELIZE, **values)

    def plan_values(self, *names: str) -> list[Any]:
        """Of its widgets."""
        return self.page.evaluate(PLAN_VALUES, [*names])

    def plan(self, part: str) -> Locator:
        """A part of what it draws of its plan, such as the title; not the panel's of the next run."""
        return self.page.locator(f".paralleldit-plan-{part}:not([data-testid='paralleldit-next'] *)")

    @contextlib.contextmanager
    def routed(self, route: str, answer: dict[str, Any] | Callable[[Route], Any]) -> Iterator[None]:
        """Answers the page's requests of that address in the host's place: by this JSON, or by this function."""
        self.page.route(route, answer if callable(answer) else lambda asked: asked.fulfill(json=answer))
        try:
            yield
        finally:
            self.page.unroute(route)

    def run(self) -> None:
        """Presses the Run button. The pointer leaves a tab first, whose preview would cover the button."""
        size = self.page.viewport_size or {"width": 2, "height": 2}
        self.page.mouse.move(size["width"] / 2, size["height"] - 2)
        self.page.get_by_test_id("queue-button").click()

    def open_panel(self, group: int = 1) -> Locator:
        """The pack's panel, as far as it is about one worker group: other tests may have made more.

        Opened unless the editor has done so: after a reload it may remember which tab was open.
        """
        panel = self.page.get_by_test_id("paralleldit-panel").locator(f"[data-group='{group}']")
        insist(lambda: panel.is_visible() or self._tab().click(), lambda ms: panel.wait_for(timeout=ms))
        return panel

    def close_panel(self) -> None:
        panel = self.page.get_by_test_id("paralleldit-panel")
        insist(
            lambda: panel.is_visible() and self._tab().click(), lambda ms: panel.wait_for(state="hidden", timeout=ms)
        )

    def set_theme(self, theme: str) -> None:
        """theme: dark or light. The host keeps it for pages that are opened later."""
        self.page.evaluate(SET_THEME, theme)

    def screenshot(self, name: str, part: Locator | None = None) -> None:
        """Keeps one of the page, or of a part of it."""
        SCREENSHOTS.mkdir(exist_ok=True)
        (part or self.page).screenshot(path=SCREENSHOTS / f"{name}.png")

    def _tab(self) -> Locator:
        return self.page.locator(".paralleldit-tab-button")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(usual in message.text for usual in USUAL_ERRORS):
            self.problems.append(f"console: {message.text}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and not self._usual(response.url):
            self.problems.append(f"HTTP {response.status}: {response.url}")

    def _on_failure(self, request: Request) -> None:
        if request.failure != GIVEN_UP and not self._usual(request.url):
            self.problems.append(f"{request.failure}: {request.url}")

    def _usual(self, url: str) -> bool:
        return url.removeprefix(self._host).startswith(USUAL_404)


@contextlib.contextmanager
def use_setting(host: ComfyHost, name: str, value: Any, usual: Any) -> Iterator[None]:
    """Sets a setting of the editor for pages that are opened while this is entered."""

    def post(value: Any) -> None:
        ask(host, f"/settings/{name}", json.dumps(value).encode(), headers={"Content-Type": "application/json"})

    post(value)
    try:
        yield
    finally:
        post(usual)


def wait_for(page: Page, true: str, *, arg: Any = None, timeout: float = PATIENCE_MS) -> JSHandle:
    """Until an expression, or a function of that argument, is true in the page; what it then is."""
    return page.wait_for_function(true, arg=arg, timeout=timeout, polling=POLL_MS)


def insist(act: Callable[[], Any], came: Callable[[float], Any]) -> None:
    """Acts again until what is to come of it is there, as a person does: a busy page may miss a click on its canvas.

    came: waits for it so many milliseconds, and raises NotInTime.
    """
    for left in reversed(range(TRIES)):
        act()
        try:
            came(PATIENCE_MS / TRIES)
            return
        except NotInTime:
            if not left:
                raise


@contextlib.contextmanager
def open_editor(browser: Browser, host: ComfyHost) -> Iterator[Editor]:
    """The editor in a fresh profile."""
    with contextlib.closing(browser.new_context(**CONTEXT)) as context:
        yield Editor(context.new_page(), host.url)


class SharedPage:
    """The host's editor in a fresh profile, opened when it is first asked for: to load it takes a browser many seconds.

    An open page draws all the time, so it is closed where nobody will ask soon.
    """

    def __init__(self, browser: Browser, host: ComfyHost) -> None:
        self._browser = browser
        self._host = host
        self._editor: Editor | None = None
        self._to_close = contextlib.ExitStack()

    def editor(self) -> Editor:
        if self._editor is None:
            self._editor = self._to_close.enter_context(open_editor(self._browser, self._host))
        return self._editor

    def tidied(self) -> Editor:
        """The page of the usual size, with an empty workflow as its only tab, no panel and no problems told of yet."""
        editor = self.editor()
        if editor.page.viewport_size != VIEWPORT:
            editor.resize(VIEWPORT)
        editor.close_panel()
        editor.open_alone({"nodes": [], "links": [], "version": 0.4})
        editor.problems.clear()
        return editor

    def close(self) -> None:
        self._editor = None
        self._to_close.close()
