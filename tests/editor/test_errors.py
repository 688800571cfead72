"""An error says what went wrong, what to do, and last of all the details; the editor shows it so, at the node."""

from __future__ import annotations

import os
import re
import signal

from playwright.sync_api import Locator, Page, expect

from demo.host import REPOSITORY, ComfyHost
from parallel_backend.errors import DETAILS, ModelFileError, PlanError, RequestError
from tests.support.editor.editor import Editor, wait_for
from tests.support.editor.examples import open_demo
from tests.support.host.graphs import ranks, status
from worker.errors import Explanation, RequestRefused, WorkerGroupError
from worker.settings import SettingsError

CARD, TITLE = "paralleldit-error", "header strong"
TOO_MANY = {"mode": "manual", "ulysses": 9}
READABLE = 4.5  # the contrast that WCAG asks of text
# Moves the view so that a node's card would lie in the lower right corner.
TO_THE_CORNER = """() => {
    const { ds, graph, canvas } = window.app.canvas
    const [node] = graph.findNodesByType('KSampler')
    ds.offset[0] = canvas.clientWidth / ds.scale - node.pos[0] - node.size[0] - 20
    ds.offset[1] = canvas.clientHeight / ds.scale - node.pos[1] - 60
    window.app.canvas.setDirty(true, true)
}"""
FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Of a text and the opaque background behind it, by WCAG's formula.
CONTRAST = r"""(text) => {
    const channels = (color) => color.match(/[\d.]+/g).map(Number)
    const behind = (element) => {
        const color = channels(getComputedStyle(element).backgroundColor)
        return color.length === 4 && color[3] < 1 ? behind(element.parentElement) : color
    }
    const luminance = ([r, g, b]) => {
        const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4)
        return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
    }
    const [a, b] = [channels(getComputedStyle(text).color), behind(text)].map(luminance)
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
}"""


def test_the_text_of_an_error_is_in_the_order_of_importance_and_the_same_in_the_engine_and_in_the_worker() -> None:
    fields = ("It ended.\n\nRank 1 was killed.", "Queue it again.", "a log\n\nof a rank")
    said = f"It ended.\nRank 1 was killed.\n\nQueue it again.\n\n{DETAILS}\na log\n\nof a rank"
    for kind in (WorkerGroupError, RequestRefused, SettingsError, RequestError, ModelFileError):
        error = kind(*fields)
        assert str(error) == said
        assert error.explanation == Explanation(*fields)
    refused = PlanError("cfg=3 does not fit.", "Use cfg=2.", "cfg")
    assert (str(refused), refused.fields) == ("cfg=3 does not fit.\n\nUse cfg=2.", ("cfg",))
    assert isinstance(refused, ValueError) and isinstance(WorkerGroupError("It ended."), RuntimeError)
    assert str(RequestRefused("No; use less.")) == "No; use less."


def test_the_editor_looks_for_the_same_line_above_the_details() -> None:
    assert f"\\n\\n{DETAILS}\\n" in (REPOSITORY / "web" / "errors" / "message.mjs").read_text()


def card_of(page: Page) -> Locator:
    card = page.get_by_test_id(CARD)
    expect(card).to_be_visible()
    return card


def test_a_rank_that_dies_in_a_job_is_told_at_the_node_with_its_log_folded_and_in_the_panel(
    editor: Editor, page: Page, host: ComfyHost
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate(
        "() => window.app.api.addEventListener('progress', ({ detail }) => { window.reached = detail.value })"
    )
    open_demo(editor, seed=4711, steps=3000)
    editor.run()
    wait_for(page, "window.reached > 3")
    os.kill(ranks(host)[1], signal.SIGKILL)
    card = card_of(page)
    expect(card.locator(TITLE)).to_have_text("The worker group failed")
    expect(card.get_by_test_id(f"{CARD}-cause")).to_have_text(re.compile(r"Rank 1 .* was killed by SIGKILL"))
    expect(card.get_by_test_id(f"{CARD}-advice")).to_contain_text("Queue the prompt again")
    panel = editor.open_panel()
    editor.screenshot("error-killed-rank")
    expect(panel.get_by_test_id("paralleldit-state")).to_contain_text("ready", ignore_case=True)  # it has come back
    expect(panel).to_contain_text("SIGKILL")
    panel.get_by_test_id("paralleldit-dismiss").click()
    expect(panel).not_to_contain_text("SIGKILL")
    assert status(host)["last_death"] is None
    editor.close_panel()
    log = card.get_by_text("The last lines of rank-1.log")
    expect(log).to_be_hidden()
    card.get_by_text("Details").click()
    expect(log).to_be_visible()
    page.evaluate(TO_THE_CORNER)
    page.evaluate(FRAME)
    card.get_by_test_id(f"{CARD}-copy").click()  # which the canvas's own buttons do not cover
    expect(card.get_by_test_id(f"{CARD}-copy")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    for words in ("The worker group failed (KSampler)", "SIGKILL", "rank-1.log"):
        assert words in copied
    page.evaluate("() => window.app.api.addEventListener('execution_success', () => { window.served = true })")
    editor.set_widgets("KSampler", steps=2)
    editor.run()
    expect(card).to_have_count(0)
    wait_for(page, "window.served")
    assert editor.problems == []


def test_a_plan_that_does_not_fit_is_told_at_the_node_readably_until_a_key_a_button_or_another_workflow(
    themed: Editor,
) -> None:
    page = themed.page
    open_demo(themed, TOO_MANY)
    themed.run()
    focused = page.evaluate("document.activeElement.className")
    card = card_of(page)
    title, (cause, advice) = (
        card.locator(TITLE),
        (card.get_by_test_id(f"{CARD}-{part}") for part in ("cause", "advice")),
    )
    expect(title).to_have_text("This plan cannot be used")
    expect(cause).to_contain_text("ulysses=9")
    expect(advice).to_contain_text("Lower it to 8 or less")
    expect(card.get_by_test_id(f"{CARD}-details")).to_have_count(0)
    for text in (title, cause, advice):
        assert text.evaluate(CONTRAST) >= READABLE
    assert page.evaluate("document.activeElement.className") == focused
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Escape")
    expect(card).to_have_count(0)
    themed.run()
    card_of(page).get_by_test_id(f"{CARD}-dismiss").press("Enter")
    expect(card).to_have_count(0)
    themed.run()
    card_of(page)
    open_demo(themed)
    expect(card).to_have_count(0)
    assert themed.problems == []
