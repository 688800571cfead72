"""The panel at real sizes, and what it costs: of worker groups that are not there, by the host's own events."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from demo.host import ComfyHost
from tests.support.editor.cost import memory_of, traced
from tests.support.editor.editor import PATIENCE_MS, PLAN_VALUES, VIEWPORT, Editor, wait_for
from tests.support.editor.examples import open_demo, settle
from tests.support.editor.groups import NUMBER, STEPS, event, run, sampling, tell
from tests.support.host.graphs import ask_error, runs

WIDTHS = (250, 312, 500)  # pixels: of a small window, ComfyUI's least, and a broad one
LEAST = 312
WORLDS = (1, 2, 8, 16)
SHOW_ALONE = """(panel, number) => {
    for (const group of panel.querySelectorAll('[data-group]')) {
        group.style.display = number && group.dataset.group !== `${number}` ? 'none' : ''
    }
}"""
IS_IN_WINDOW = """(row) => {
    const { top, bottom, left, right } = row.getBoundingClientRect()
    return top >= 0 && left >= 0 && bottom <= innerHeight && right <= innerWidth
}"""
SET_WIDTH = "(panel, width) => { panel.style.width = `${width}px` }"
# Of each rank's row: whether name and memory are side by side in it, and the name is whole.
ROWS = """(group) => [...group.querySelectorAll('[data-testid^=paralleldit-rank-]')].map((row) => {
    const [name, , memory] = row.querySelector('.paralleldit-line').children
    const [left, right, frame] = [name, memory, row].map((each) => each.getBoundingClientRect())
    const overlap = Math.min(left.bottom, right.bottom) - Math.max(left.top, right.top)
    const isBeside = left.right <= right.left && overlap > left.height / 2
    return [isBeside && right.right <= frame.right + 0.5, name.scrollWidth <= name.clientWidth]
})"""
SCROLLERS = """(panel) => [...panel.querySelectorAll('*')].filter((each) => {
    const { overflowX, overflowY } = getComputedStyle(each)
    const scrolls = [overflowX, overflowY].map((way) => ['auto', 'scroll'].includes(way))
    return scrolls[0] && each.scrollWidth > each.clientWidth || scrolls[1] && each.scrollHeight > each.clientHeight
}).map((each) => each.className)"""
TOO_BROAD = """(panel) => panel.scrollWidth <= panel.clientWidth ? [] : [...panel.querySelectorAll('*')]
    .filter((each) => each.getBoundingClientRect().right > panel.getBoundingClientRect().right)
    .map((each) => `${each.className}: ${each.textContent}`)"""
COUNT_ENDS = """() => {
    window.ends = 0
    window.app.api.addEventListener('execution_success', () => { window.ends++ })
}"""
# Changes of the panel, and how many steps the last run has made that the page was told of.
COUNT_CHANGES = """(panel) => {
    window.seen = 0
    new MutationObserver((changes) => { window.seen += changes.length })
        .observe(panel, { subtree: true, childList: true, characterData: true, attributes: true })
    window.app.api.addEventListener('paralleldit.group', ({ detail }) => {
        if (detail.group === GROUP) window.heard = detail.runs[0]?.made
    })
}""".replace("GROUP", str(NUMBER))
CHANGES = "() => { const { seen } = window; window.seen = 0; return seen }"
SET_HIDDEN = """(hidden) => {
    if (hidden) Object.defineProperty(document, 'hidden', { value: true, configurable: true })
    else delete document.hidden
    document.dispatchEvent(new Event('visibilitychange'))
}"""
# As when a lost connection is back: the page asks the host again for all that it knows.
RECONNECT = "() => window.app.api.dispatchCustomEvent('reconnected')"
PAUSE_MS = 1000  # more than is between two drawings
PROMPTS, LONG_FRAME = 10, 100  # milliseconds of the processor
TOLD, WARM, AT_ONCE = 200, 60, 20  # runs: those that are told, before them, and between two drawings
MOST_BYTES, MOST_THINGS = 1000, 5  # a run's, and those by which the later half's least count is higher


@pytest.fixture
def panel(editor: Editor, host: ComfyHost) -> Iterator[Locator]:
    """Of the group that is not there: other tests' groups above it are out of the way."""
    tell(host, event())
    panel, whole = editor.open_panel(NUMBER), editor.page.get_by_test_id("paralleldit-panel")
    whole.evaluate(SHOW_ALONE, NUMBER)
    yield panel
    whole.evaluate(SHOW_ALONE, None)
    tell(host, event([], 0, state="stopped", model=None))


def test_ten_prompts_of_everyday_use_have_no_long_frame_of_ours(editor: Editor, page: Page) -> None:
    """Of the processor's time, since a busy machine makes any frame long. What our code calls is ours, too, and what
    the editor calls of it to draw a node. Where the editor's own part of a frame takes longer, so may ours: on shared
    cores all code takes up to four times its time."""
    acts = {
        1: editor.open_panel,
        3: lambda: editor.set_plan(mode="manual", cfg=2),
        5: editor.close_panel,
        6: lambda: open_demo(editor, steps=3),
        7: lambda: editor.set_plan(mode="manual", cfg=1, ulysses=2),
        8: editor.open_panel,
        9: lambda: page.get_by_test_id("paralleldit-runs-all").first.click(),
    }
    page.evaluate(COUNT_ENDS)
    with traced(page) as tasks:
        open_demo(editor, steps=3)
        for number in range(PROMPTS):
            acts.get(number, lambda: None)()
            editor.set_widgets("KSampler", seed=130 + number)
            editor.run()
            wait_for(page, "(ends) => window.ends === ends", arg=number + 1, timeout=3 * PATIENCE_MS)
    acts[9]()
    longest = max(tasks, key=lambda task: task.ours)
    editors = max(task.cpu - task.ours for task in tasks)
    assert 0 < longest.ours <= max(LONG_FRAME, editors), (longest, editors)
    assert editor.problems == []


def test_the_page_grows_by_no_run(editor: Editor, panel: Locator, host: ComfyHost) -> None:
    """The group is busy all the time: by each change of a tab's badge, ComfyUI's tooltips lose three listeners. What
    the editor itself takes at times, up to a megabyte at once, does not change the median; its own nodes and listeners
    come and go, so the least count of each half is what is kept."""
    found = []
    for number in range(1, WARM + TOLD + 1, AT_ONCE):
        last, made = number + AT_ONCE, 1 + number // AT_ONCE
        ended = [
            event([run(each, at)], state="busy", operation="call") for each in range(number, last) for at in (1, 9)
        ]
        tell(host, *ended, event([run(last, made)], state="busy", operation="call"))
        expect(panel.get_by_test_id("paralleldit-step")).to_contain_text(f"step {made} of {STEPS}")
        found.append(memory_of(editor.page))
    found = found[WARM // AT_ONCE - 1 :]
    halves = found[: len(found) // 2], found[len(found) // 2 :]
    for things in ("nodes", "listeners"):
        before, after = (min(getattr(each, things) for each in half) for half in halves)
        assert after - before <= MOST_THINGS, found
    grown = statistics.median(after.heap - before.heap for before, after in itertools.pairwise(found))
    assert grown <= AT_ONCE * MOST_BYTES, found
    assert editor.problems == []
    with editor.page.expect_response("**/paralleldit/groups*"):
        editor.page.evaluate(RECONNECT)  # the page forgets these runs, whose numbers are higher than other tests'
    settle(editor)


def test_a_ranks_device_and_memory_are_on_one_line_at_all_widths(
    editor: Editor, page: Page, panel: Locator, host: ComfyHost
) -> None:
    """The page is high enough for all ranks to be seen on the screenshots."""
    whole = page.get_by_test_id("paralleldit-panel")
    try:
        for ranks in WORLDS:
            tell(host, *sampling(ranks))
            expect(panel.locator("[data-testid^=paralleldit-rank-]")).to_have_count(ranks)
            editor.resize({"width": VIEWPORT["width"], "height": 900 + 60 * ranks})
            for width in WIDTHS:
                whole.evaluate(SET_WIDTH, width)
                found = panel.evaluate(ROWS)
                assert all(is_beside for is_beside, _ in found), (ranks, width)
                assert width < LEAST or all(is_whole for _, is_whole in found), (ranks, width)
                assert whole.evaluate(SCROLLERS) == [] == whole.evaluate(TOO_BROAD), (ranks, width)
            editor.screenshot(f"panel-{ranks}-ranks")
            expect(panel).to_contain_text(f"{ranks} × RTX 4090")
            row = panel.get_by_test_id(f"paralleldit-rank-{ranks - 1}")
            expect(row).to_contain_text(re.compile(rf"GPU {ranks - 1}.*97 % · 71 °C"))
            expect(row).to_have_attribute(
                "title", re.compile(rf"Rank {ranks - 1} · NVIDIA GeForce RTX 4090 · .*11\.0 GiB")
            )
        expect(panel.get_by_test_id("paralleldit-rank-0")).to_contain_text("of 23.6 GiB")
    finally:
        editor.resize(VIEWPORT)
        whole.evaluate("(panel) => { panel.style.width = '' }")


def test_eight_ranks_are_in_sight_and_state_and_buttons_stay_so(
    editor: Editor, page: Page, panel: Locator, host: ComfyHost
) -> None:
    editor.resize({"width": 900, "height": 700})
    try:
        for each in sampling(8)[:6]:
            tell(host, each)
        row = panel.get_by_test_id("paralleldit-rank-7")
        expect(row).to_be_visible()
        top = panel.get_by_test_id("paralleldit-top")
        first, last = top.bounding_box(), row.bounding_box()
        assert first and last and last["y"] + last["height"] - first["y"] <= 600
        panel.get_by_test_id("paralleldit-run").last.scroll_into_view_if_needed()
        for part in ("state", "stop", "step"):
            assert panel.get_by_test_id(f"paralleldit-{part}").evaluate(IS_IN_WINDOW), part
        scrolled = row.bounding_box()
        assert scrolled and scrolled["y"] < last["y"] - 50, "nothing was scrolled"
        editor.screenshot("panel-scrolled")
        page.get_by_test_id("paralleldit-panel").evaluate("(panel) => panel.scrollIntoView()")
    finally:
        editor.resize(VIEWPORT)


def test_it_says_how_long_ranks_have_been_starting_and_what_of_the_weights_has_come(
    panel: Locator, host: ComfyHost
) -> None:
    tell(host, event([], 0, state="starting", starting=12.0))
    expect(panel.get_by_test_id("paralleldit-state")).to_have_text("Starting the workers, 12 s")
    reading = event(state="busy", operation="load")
    for memory, read in zip(reading["status"]["memory"], (70, 40), strict=True):
        memory["read"] = read
    tell(host, reading)
    expect(panel.get_by_test_id("paralleldit-step")).to_have_text("Loading the model40%")
    expect(panel.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "40")


@pytest.mark.parametrize(("kind", "number"), [("closed", 12), ("behind", 13)])
def test_nothing_is_drawn_for_nobody(kind: str, number: int, editor: Editor, panel: Locator, host: ComfyHost) -> None:
    """A closed panel, and one in a page behind another, are drawn once they are seen."""
    page, steps = editor.page, panel.get_by_test_id("paralleldit-step")
    page.get_by_test_id("paralleldit-panel").evaluate(COUNT_CHANGES)
    tell(host, event([run(number, 3)], state="busy", operation="call"))
    expect(steps).to_contain_text("step 3 of 20")
    if kind == "closed":
        editor.close_panel()
    else:
        page.evaluate(SET_HIDDEN, True)
    page.evaluate(CHANGES)
    tell(host, event([run(number, 4)], state="busy", operation="call"))
    wait_for(page, "window.heard === 4")
    page.wait_for_timeout(PAUSE_MS)
    assert page.evaluate(CHANGES) == 0
    if kind == "closed":
        editor.open_panel(NUMBER)
    else:
        page.evaluate(SET_HIDDEN, False)
    expect(steps).to_contain_text("step 4 of 20")
    assert page.evaluate(CHANGES) > 0


def test_a_run_says_why_it_is_less_parallel_than_asked(editor: Editor, panel: Locator, host: ComfyHost) -> None:
    stock = "Flux runs as stock, on ComfyUI's own device alone. The worker processes cannot run a change of its img_in."
    less = "This sampling runs under one rank, not under ulysses=2, because of the model patch 'attn1_patch'."
    known = {"steps": [], "made": 0, "alone": None, "predicted": None}
    tell(host, event([run(31, reason=less, is_stock=False), run(30, reason=stock, is_stock=True, **known), run(29)]))
    rows, reason = panel.get_by_test_id("paralleldit-run"), "paralleldit-reason"
    expect(rows.nth(0).get_by_test_id(reason)).to_have_text(less)
    expect(rows.nth(1).get_by_test_id(reason)).to_have_text(stock)
    expect(rows.nth(1)).to_contain_text("as stock, on ComfyUI's device")
    expect(rows.nth(2).get_by_test_id(reason)).to_be_hidden()
    rows.nth(2).scroll_into_view_if_needed()
    editor.screenshot("panel-as-stock", panel)


def test_the_log_fits_its_lines_and_is_copied_whole(editor: Editor, page: Page, panel: Locator) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    lines = [f"line {number}" for number in range(1, 41)]
    with editor.routed("**/paralleldit/logs*", lambda route: route.fulfill(body="\n".join(lines))):
        panel.locator("summary", has_text="Log").click()
        log = panel.get_by_test_id("paralleldit-log")
        expect(log).to_have_text("\n".join(lines[-15:]))
        panel.get_by_test_id("paralleldit-log-all").click()
        expect(log).to_have_text("\n".join(lines))
        assert page.get_by_test_id("paralleldit-panel").evaluate(SCROLLERS) == []
        panel.get_by_test_id("paralleldit-log-copy").click()
        expect(panel.get_by_test_id("paralleldit-log-copy")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "\n".join(lines)
        panel.locator("summary", has_text="Log").click()


def read_seconds(words: str) -> float:
    amount, unit = words.split()
    return float(amount) / {"ms": 1000, "s": 1}[unit]


def start_comparison(editor: Editor, count: int) -> tuple[Locator, Locator]:
    """Runs the open demo, and begins to compare so many plans. Returns the panel and the table's lines."""
    panel = editor.open_panel()
    editor.run()
    expect(panel.get_by_test_id("paralleldit-run").first).to_contain_text("done", timeout=3 * PATIENCE_MS)
    panel.get_by_test_id("paralleldit-compare").click()
    lines = panel.get_by_test_id("paralleldit-comparison").locator("tbody tr")
    expect(lines).to_have_count(count)
    expect(panel.get_by_test_id("paralleldit-compare-cancel")).to_be_visible()
    return panel, lines


def test_plans_are_compared_with_one_device_by_running_each_once(editor: Editor, page: Page) -> None:
    open_demo(editor, steps=3, seed=120)
    panel, lines = start_comparison(editor, 4)  # the three fastest plans, and one device
    expect(panel.get_by_text(re.compile(r"^Comparing \d of 4…$"))).to_be_visible()
    expect(panel.get_by_test_id("paralleldit-compare-cancel")).to_be_hidden(timeout=9 * PATIENCE_MS)
    steps = []
    for line in lines.all():
        expect(line).to_have_attribute("data-state", "done")
        step, times, sampling, _ = line.get_by_role("cell").all_inner_texts()  # the last is the button
        steps.append(read_seconds(step))
        assert "×" in times and read_seconds(sampling) < 60
    assert steps == sorted(steps)
    expect(lines.first.get_by_text("fastest", exact=True)).to_be_visible()
    expect(panel.get_by_text("fastest", exact=True)).to_have_count(1)
    names = [each.removesuffix(" fastest") for each in lines.get_by_role("rowheader").all_inner_texts()]
    assert "One device" in names and "cfg=2" in names and len(set(names)) == 4
    panel.get_by_test_id("paralleldit-runs-all").click()
    plans = [each.inner_text() for each in panel.get_by_test_id("paralleldit-run").all()[:4]]
    panel.get_by_test_id("paralleldit-runs-all").click()
    assert "one rank" in plans[-1], "one device runs first"
    assert all(any(name in plan for plan in plans) for name in names if name != "One device"), plans
    assert panel.get_by_test_id("paralleldit-compare").is_enabled() and editor.problems == []
    name = page.evaluate("() => window.app.extensionManager.workflow.activeWorkflow.filename")
    expect(panel.get_by_test_id("paralleldit-comparison").locator("caption")).to_have_text(f"{name} · 64 × 64")
    editor.screenshot("compared")
    lines.filter(has_text="ulysses=2").get_by_test_id("paralleldit-use").click()
    assert editor.plan_values("mode", "cfg", "ulysses") == ["manual", 1, 2]
    page.keyboard.press("Control+z")
    wait_for(page, f"({PLAN_VALUES})(['mode'])[0] === 'auto'")
    open_demo(editor)
    expect(panel.get_by_test_id("paralleldit-comparison")).to_be_hidden()


def test_a_lossy_plan_is_compared_with_an_exact_one_too(editor: Editor, host: ComfyHost) -> None:
    open_demo(editor, {"mode": "manual", "pipefusion": 2, "patches": 2}, steps=4, seed=121)
    _, lines = start_comparison(editor, 5)  # behind one device, before the predicted ones
    for line in lines.all():
        expect(line).to_have_attribute("data-state", "done", timeout=3 * PATIENCE_MS)
    (text,) = [each for each in lines.all_inner_texts() if "error" in each]
    (shown,) = re.findall(r"error ([\d.]+)%", text)
    lossy, exact = (each["id"] for each in runs(host)[3:5])
    error = ask_error(host, lossy, exact)
    assert "pipefusion=2 × 2 patches" in text and float(shown) == float(f"{100 * error:.2g}") > 0.01
    assert editor.problems == []
