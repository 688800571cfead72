"""The panel at real sizes, and what it costs: of worker groups that are not there, by the host's own events."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from demo.host import ComfyHost
from tests.support.editor.cost import count_frames
from tests.support.editor.editor import PATIENCE_MS, VIEWPORT, Editor, open_editor, use_setting, wait_for
from tests.support.editor.examples import open_demo
from tests.support.editor.groups import EVENTS_A_SECOND, NUMBER, event, run, sampling, tell
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
# What turns or slides: without a GPU each frame of it is drawn by the CPU.
MOVING = """(panel) => [...panel.querySelectorAll('*')].filter((each) => {
    const { animationName, transitionDuration } = getComputedStyle(each)
    return animationName !== 'none' || transitionDuration !== '0s'
}).map((each) => each.className)"""
TOO_BROAD = """(panel) => panel.scrollWidth <= panel.clientWidth ? [] : [...panel.querySelectorAll('*')]
    .filter((each) => each.getBoundingClientRect().right > panel.getBoundingClientRect().right)
    .map((each) => `${each.className}: ${each.textContent}`)"""
# Changes of the panel, and how many steps the last run has made that the page was told of.
COUNT_CHANGES = """(panel) => {
    window.seen = 0
    new MutationObserver((changes) => { window.seen += changes.length })
        .observe(panel, { subtree: true, childList: true, characterData: true, attributes: true })
    window.app.api.addEventListener('paralleldit.group', ({ detail }) => { window.heard = detail.runs[0]?.made })
}"""
CHANGES = "() => { const { seen } = window; window.seen = 0; return seen }"
SET_HIDDEN = """(hidden) => {
    if (hidden) Object.defineProperty(document, 'hidden', { value: true, configurable: true })
    else delete document.hidden
    document.dispatchEvent(new Event('visibilitychange'))
}"""
OF_PLAN = """() => ['mode', 'cfg', 'ulysses'].map((name) => window.app.graph.nodes
    .find((node) => node.type === 'ParallelDiT_Parallelize').widgets.find((widget) => widget.name === name).value)"""
PAUSE_MS = 1000  # more than is between two drawings
WINDOW, ROUNDS, TRIES = 0.75, 2, 10  # seconds, in turn, and how often where the machine had other things to do
SHARE = 0.9  # of the closed panel's frames


@contextlib.contextmanager
def opened(editor: Editor, host: ComfyHost) -> Iterator[Locator]:
    """The panel, of the group that is not there: other tests' groups above it are out of the way."""
    tell(host, event())
    panel, whole = editor.open_panel(NUMBER), editor.page.get_by_test_id("paralleldit-panel")
    whole.evaluate(SHOW_ALONE, NUMBER)
    yield panel
    whole.evaluate(SHOW_ALONE, None)
    tell(host, event([], 0, state="stopped", model=None))


@pytest.fixture
def panel(shared_editor: Editor, host: ComfyHost) -> Iterator[Locator]:
    with opened(shared_editor, host) as found:
        yield found


def share_of_frames(editor: Editor) -> float:
    """Those with the panel open, of those with it closed."""
    closed, opened = 0.0, 0.0
    for _ in range(ROUNDS):
        editor.close_panel()
        closed += count_frames(editor.page, WINDOW)
        editor.open_panel(NUMBER)
        opened += count_frames(editor.page, WINDOW)
    return opened / closed


def test_an_open_panel_leaves_the_editor_its_frames(shared_editor: Editor, panel: Locator, host: ComfyHost) -> None:
    shared_editor.animate(True)
    tell(host, *sampling(), seconds=1 / EVENTS_A_SECOND)
    try:
        expect(panel.get_by_test_id("paralleldit-run")).to_have_count(3)
        panel.get_by_test_id("paralleldit-runs-all").click()
        expect(panel.get_by_test_id("paralleldit-run")).to_have_count(10)
        expect(panel.get_by_test_id("paralleldit-state")).to_have_text("Running")
        assert panel.evaluate(MOVING) == []
        assert panel.get_by_test_id("paralleldit-rank-1").evaluate(IS_IN_WINDOW), "what nobody sees costs nothing"
        shares = []
        while len(shares) < TRIES and max(shares, default=0) < SHARE:
            shares.append(share_of_frames(shared_editor))
        assert max(shares) >= SHARE, shares
    finally:
        shared_editor.animate(False)
        tell(host)
        panel.get_by_test_id("paralleldit-runs-all").click()


def test_a_ranks_device_and_memory_are_on_one_line(shared_editor: Editor, panel: Locator, host: ComfyHost) -> None:
    for ranks in holds_at_all_widths(shared_editor, panel, host, "dark"):
        row = panel.get_by_test_id(f"paralleldit-rank-{ranks - 1}")
        expect(row).to_contain_text(f"GPU {ranks - 1}")
        expect(row).to_contain_text("97 % · 71 °C")
        expect(panel).to_contain_text(f"{ranks} × RTX 4090")
        expect(row).to_have_attribute("title", re.compile(rf"Rank {ranks - 1} · NVIDIA GeForce RTX 4090 · .*11\.0 GiB"))
    expect(panel.get_by_test_id("paralleldit-rank-0")).to_contain_text("of 23.6 GiB")


def test_eight_ranks_are_in_sight_and_state_and_buttons_stay_so(
    shared_editor: Editor, panel: Locator, host: ComfyHost
) -> None:
    page = shared_editor.page
    shared_editor.resize({"width": 900, "height": 700})
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
        shared_editor.screenshot("panel-scrolled")
        page.get_by_test_id("paralleldit-panel").evaluate("(panel) => panel.scrollIntoView()")
    finally:
        shared_editor.resize(VIEWPORT)


def test_they_are_in_chinese_too(browser: Browser, host: ComfyHost) -> None:
    with (
        use_setting(host, "Comfy.Locale", "zh", "en"),
        open_editor(browser, host) as editor,
        opened(editor, host) as panel,
    ):
        for _ in holds_at_all_widths(editor, panel, host, "zh"):
            expect(panel.get_by_test_id("paralleldit-state")).to_have_text("运行中")
        assert editor.problems == []


def holds_at_all_widths(editor: Editor, panel: Locator, host: ComfyHost, name: str) -> Iterator[int]:
    """Gives each number of ranks once it is shown. A page high enough for all of them is seen on the screenshots."""
    whole = editor.page.get_by_test_id("paralleldit-panel")
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
                if ranks in (2, 16):
                    assert panel.get_by_test_id(f"paralleldit-rank-{ranks - 1}").evaluate(IS_IN_WINDOW)
                if ranks in (2, 16) and width == LEAST:
                    editor.screenshot(f"panel-{ranks}-ranks-{name}")
            yield ranks
    finally:
        editor.resize(VIEWPORT)
        whole.evaluate("(panel) => { panel.style.width = '' }")


def test_a_cancelled_job_is_none_that_a_restart_would_end(
    shared_editor: Editor, panel: Locator, host: ComfyHost
) -> None:
    page, asked = shared_editor.page, []
    cancelled = run(10, 7, state="cancelled", seconds=4.2)
    tell(host, event([cancelled], state="busy", operation="call", given_up=True))
    expect(panel.get_by_test_id("paralleldit-state")).to_have_text("Cancelled, finishing the step")
    expect(panel.get_by_test_id("paralleldit-step")).to_be_hidden()

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json={"state": "ready"})

    page.route("**/paralleldit/restart*", answer)
    try:
        with page.expect_response("**/paralleldit/restart*"):
            panel.get_by_test_id("paralleldit-restart").click()
        assert len(asked) == 1 and page.get_by_role("dialog").count() == 0
        tell(host, event([run(11, 3)], state="busy", operation="call"))
        expect(panel.get_by_test_id("paralleldit-state")).to_have_text("Running")
        panel.get_by_test_id("paralleldit-restart").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert len(asked) == 1
    finally:
        page.unroute("**/paralleldit/restart*")


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


def test_it_says_which_models_stay_beside_the_one_in_use(panel: Locator, host: ComfyHost) -> None:
    said = panel.get_by_test_id("paralleldit-weights")
    for beside in ("Beside low.gguf, the devices keep high.gguf.", "The devices released high.gguf."):
        tell(host, event(beside=beside))
        expect(said).to_contain_text(beside)
    tell(host, event(beside=""))
    expect(said).not_to_contain_text("high.gguf")


@pytest.mark.parametrize(("kind", "number"), [("closed", 12), ("behind", 13)])
def test_nothing_is_drawn_for_nobody(
    kind: str, number: int, shared_editor: Editor, panel: Locator, host: ComfyHost
) -> None:
    """A closed panel, and one in a page behind another, are drawn once they are seen."""
    page, steps = shared_editor.page, panel.get_by_test_id("paralleldit-step")
    page.get_by_test_id("paralleldit-panel").evaluate(COUNT_CHANGES)
    tell(host, event([run(number, 3)], state="busy", operation="call"))
    expect(steps).to_contain_text("step 3 of 20")
    if kind == "closed":
        shared_editor.close_panel()
    else:
        page.evaluate(SET_HIDDEN, True)
    page.evaluate(CHANGES)
    tell(host, event([run(number, 4)], state="busy", operation="call"))
    wait_for(page, "window.heard === 4")
    page.wait_for_timeout(PAUSE_MS)
    assert page.evaluate(CHANGES) == 0
    if kind == "closed":
        shared_editor.open_panel(NUMBER)
    else:
        page.evaluate(SET_HIDDEN, False)
    expect(steps).to_contain_text("step 4 of 20")
    assert page.evaluate(CHANGES) > 0


def test_a_run_tells_how_much_faster_than_one_device_it_was_and_by_what_that_is_known(
    panel: Locator, host: ComfyHost
) -> None:
    tell(host, event([run(20)]))
    row = panel.get_by_test_id("paralleldit-run").first
    factor = row.get_by_test_id("paralleldit-factor")
    expect(factor).to_have_text("0.49 s a step, 1.6× faster than one device (measured; one device predicted)")
    expect(row).not_to_contain_text("flux1-dev-fp8.safetensors")  # it is named above
    expect(row).to_contain_text("11.1 s in all")
    tell(host, event([run(21, is_alone_run=True, usual=0.54)]))
    expect(factor).to_have_text("0.54 s a step, 1.5× faster than one device (measured)")
    tell(host, event([run(23, alone=None)]))
    expect(factor).to_have_text("0.49 s a step (measured)")


def test_a_run_says_why_it_is_less_parallel_than_asked(shared_editor: Editor, panel: Locator, host: ComfyHost) -> None:
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
    shared_editor.screenshot("panel-as-stock", panel)


def test_gpus_that_are_left_out_have_a_button_and_new_settings_are_told(panel: Locator, host: ComfyHost) -> None:
    values = {"cards": "GPU 1 (8 GB), GPU 2 (8 GB)", "own": "GPU 0 (12 GB)", "present": 3}
    note = panel.get_by_test_id("paralleldit-note")
    tell(host, event(remarks=[{"key": "left_out", "values": values, "text": ""}], outdated=True))
    expect(note).to_contain_text("Not used: GPU 1 (8 GB), GPU 2 (8 GB).")
    expect(note.get_by_test_id("paralleldit-use-all")).to_have_text("Use all 3")
    expect(panel.get_by_text("The settings have changed. Restart applies them.")).to_be_visible()
    tell(host, event())
    expect(note).to_be_hidden()
    expect(panel.get_by_test_id("paralleldit-use-all")).to_have_count(0)


def test_the_log_fits_its_lines_and_is_copied_whole(shared_editor: Editor, panel: Locator) -> None:
    page = shared_editor.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    lines = [f"line {number}" for number in range(1, 41)]
    page.route("**/paralleldit/logs*", lambda route: route.fulfill(body="\n".join(lines)))
    try:
        panel.locator("summary", has_text="Log").click()
        log = panel.get_by_test_id("paralleldit-log")
        expect(log).to_have_text("\n".join(lines[-15:]))
        panel.get_by_test_id("paralleldit-log-all").click()
        expect(log).to_have_text("\n".join(lines))
        assert page.get_by_test_id("paralleldit-panel").evaluate(SCROLLERS) == []
        panel.get_by_test_id("paralleldit-log-copy").click()
        expect(panel.get_by_test_id("paralleldit-log-copy")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "\n".join(lines)
    finally:
        page.unroute("**/paralleldit/logs*")
        panel.locator("summary", has_text="Log").click()


def test_a_lossy_plan_is_compared_with_an_exact_one_too(shared_editor: Editor, host: ComfyHost) -> None:
    open_demo(shared_editor, {"mode": "manual", "pipefusion": 2, "patches": 2}, steps=4, seed=121)
    panel = shared_editor.open_panel()
    shared_editor.run()
    expect(panel.get_by_test_id("paralleldit-run").first).to_contain_text("done", timeout=3 * PATIENCE_MS)
    panel.get_by_test_id("paralleldit-compare").click()
    lines = panel.get_by_test_id("paralleldit-comparison").locator("tbody tr")
    expect(lines).to_have_count(5)  # before one device
    for line in lines.all():
        expect(line).to_have_attribute("data-state", "done", timeout=3 * PATIENCE_MS)
    texts = lines.all_inner_texts()
    assert ["error" in text for text in texts] == [False, False, False, True, False]
    (shown,) = re.findall(r"error ([\d.]+)%", texts[3])
    _, lossy, exact = (each["id"] for each in runs(host)[:3])
    error = ask_error(host, lossy, exact)
    assert "pipefusion=2 × 2 patches" in texts[3] and float(shown) == float(f"{100 * error:.2g}") > 0.01
    assert shared_editor.problems == []


def test_plans_are_compared_with_one_device_by_running_each_once(shared_editor: Editor) -> None:
    open_demo(shared_editor, steps=3, seed=120)
    page = shared_editor.page
    panel = shared_editor.open_panel()
    shared_editor.run()
    expect(panel.get_by_test_id("paralleldit-run").first).to_contain_text("done", timeout=3 * PATIENCE_MS)
    panel.get_by_test_id("paralleldit-compare").click()
    lines = panel.get_by_test_id("paralleldit-comparison").locator("tbody tr")
    expect(lines).to_have_count(4)  # the three fastest plans, and one device
    for line in lines.all():
        expect(line).to_have_attribute("data-state", "done", timeout=3 * PATIENCE_MS)
        assert len(line.get_by_role("cell").all_inner_texts()) == 4  # the last is the button
        expect(line).to_contain_text("×")
    expect(lines.last).to_contain_text("×1.0")
    *names, alone = lines.get_by_role("rowheader").all_inner_texts()
    assert alone == "One device" and "cfg=2" in names and len(set(names)) == 3
    panel.get_by_test_id("paralleldit-runs-all").click()
    plans = [each.inner_text() for each in panel.get_by_test_id("paralleldit-run").all()[:4]]
    panel.get_by_test_id("paralleldit-runs-all").click()
    assert all(name in plan for name, plan in zip(["one rank", *reversed(names)], plans, strict=True)), plans
    assert panel.get_by_test_id("paralleldit-compare").is_enabled() and shared_editor.problems == []
    name = page.evaluate("() => window.app.extensionManager.workflow.activeWorkflow.filename")
    expect(panel.get_by_test_id("paralleldit-comparison").locator("caption")).to_have_text(f"{name} · 64 × 64")
    shared_editor.screenshot("compared")
    lines.filter(has_text="ulysses=2").get_by_test_id("paralleldit-use").click()
    assert page.evaluate(OF_PLAN) == ["manual", 1, 2]
    page.keyboard.press("Control+z")
    wait_for(page, f"() => ({OF_PLAN})()[0] === 'auto'")
    open_demo(shared_editor)
    expect(panel.get_by_test_id("paralleldit-comparison")).to_be_hidden()
