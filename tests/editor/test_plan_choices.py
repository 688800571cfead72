"""What Parallelize Model offers in place of a plan, and what it says of one before the run."""

from __future__ import annotations

import re

from playwright.sync_api import Page, Route, expect

from demo.host import ComfyHost
from tests.support.editor.editor import PATIENCE_MS, PLAN_NODE, Editor
from tests.support.editor.examples import EXAMPLES, demo, open_demo, open_example
from tests.support.editor.groups import event, tell

ROUTE = "**/paralleldit/plan"
TOGGLE_ADVANCED = f"() => {PLAN_NODE}.toggleAdvanced()"
# Name, top and height of each widget that is drawn, from above.
DRAWN = f"""() => {PLAN_NODE}.widgets
    .filter((widget) => !widget.hidden && (!widget.advanced || {PLAN_NODE}.showAdvanced))
    .map((widget) => [widget.name, widget.y, widget.computedHeight ?? LiteGraph.NODE_WIDGET_HEIGHT])"""
FOCUSED = "() => [document.activeElement.localName, document.activeElement.closest('details')?.open]"
LEGIBLE = 0.571  # below this scale, ComfyUI draws no text


def test_templates_open_at_a_scale_at_which_their_text_is_drawn(editor: Editor, page: Page) -> None:
    scales, before = {}, page.viewport_size
    page.set_viewport_size({"width": 1400, "height": 900})
    try:
        for name in EXAMPLES:
            open_example(editor, name)
            scales[name] = page.evaluate("window.app.canvas.ds.scale")
    finally:
        page.set_viewport_size(before)
    assert min(scales.values()) > LEGIBLE and scales["demo"] > 0.6, scales


def test_the_first_switch_to_manual_takes_the_plan_of_auto(editor: Editor) -> None:
    editor.prompt(demo())
    expect(editor.plan("title")).to_have_text("Automatic plan: 2 CPU ranks, cfg=2")
    editor.set_plan(mode="manual")
    expect(editor.plan("title")).to_have_text("2 CPU ranks, cfg=2")
    assert editor.plan_values("mode", "dp", "cfg", "ulysses") == ["manual", 1, 2, 1]
    editor.set_plan(cfg=1, ring=2, mode="auto")
    expect(editor.plan("title")).to_have_text("Automatic plan: 2 CPU ranks, cfg=2")
    editor.set_plan(mode="manual")
    assert editor.plan_values("cfg", "ring") == [1, 2], "a person's degrees stay"


def test_a_plan_that_cannot_run_has_buttons_for_two_that_can(editor: Editor) -> None:
    editor.prompt(demo())
    editor.set_plan(mode="manual", cfg=1, ulysses=9)
    alert, buttons = editor.plan("content").get_by_role("alert"), editor.plan("offers button")
    expect(alert).to_contain_text("ulysses=9 is more than the model's 8 heads")
    expect(buttons).to_have_count(2)
    offered = buttons.last.inner_text()
    buttons.last.click()
    expect(alert).to_have_count(0)
    (ulysses,) = editor.plan_values("ulysses")
    assert offered == f"Use ulysses={ulysses}" and 1 < ulysses <= 8
    expect(editor.plan("title")).to_contain_text(f"ulysses={ulysses}")
    editor.set_plan(ulysses=9)
    expect(buttons.first).to_have_text("Use auto")
    buttons.first.click()
    expect(editor.plan("title")).to_contain_text("Automatic plan")
    assert editor.plan_values("mode") == ["auto"]


def test_a_plan_that_changes_the_image_says_so_in_amber(editor: Editor) -> None:
    editor.prompt(demo())
    editor.set_plan(mode="manual", cfg=1, pipefusion=2, patches=2)
    expect(editor.plan("note")).to_have_text(["PipeFusion's patches change the image a little."])
    editor.set_plan(patches=1)
    expect(editor.plan("note")).to_have_count(0)
    editor.set_plan(pipefusion=1, ulysses=2, exchange_dtype="int4")
    expect(editor.plan("note")).to_have_text(["The int4 exchange changes the image a little."])


def test_the_node_says_that_it_waits_for_an_answer_about_another_file(editor: Editor) -> None:
    held, is_released = list[Route](), False
    with editor.routed(ROUTE, lambda route: route.continue_() if is_released else held.append(route)):
        editor.prompt(demo())
        expect(editor.plan("content:not(:empty)")).to_have_text("Reading demo: coloured shapes (64×64) to plan it…")
        is_released = True
        for route in held:
            route.continue_()
        expect(editor.plan("title")).to_be_visible()


def test_a_plan_that_is_chosen_by_keyboard_leaves_the_focus_and_the_fold_open(editor: Editor, page: Page) -> None:
    editor.prompt(demo())
    editor.plan("why summary").press("Enter")
    button = page.get_by_test_id("paralleldit-plan-predicted").locator("li").last.get_by_test_id("paralleldit-use")
    button.focus()
    with page.expect_response(ROUTE):  # a run's end asks again
        page.evaluate("window.app.api.dispatchCustomEvent('execution_success', {})")
    page.evaluate("() => new Promise((resolve) => setTimeout(resolve, 200))")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(editor.plan("title")).not_to_contain_text("Automatic plan")
    assert page.evaluate(FOCUSED) == ["summary", True]


def test_all_settings_are_shown_below_those_that_were_without_a_hole(editor: Editor, page: Page) -> None:
    editor.prompt(demo())
    expect(editor.plan("title")).to_have_text("Automatic plan: 2 CPU ranks, cfg=2")
    editor.set_plan(mode="manual")
    expect(editor.plan("title")).to_have_text("2 CPU ranks, cfg=2")
    before = [name for name, *_ in page.evaluate(DRAWN)]
    page.evaluate(TOGGLE_ADVANCED)
    page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    shown = page.evaluate(DRAWN)
    assert {*before, "attention", "weights", "speeds", "compile", "group"} < {name for name, *_ in shown}
    ends = [top + height for _, top, height in shown]
    gaps = [top - end for end, (_, top, _) in zip(ends, shown[1:], strict=False)]
    assert all(gap < shown[0][2] for gap in gaps), gaps
    page.evaluate(TOGGLE_ADVANCED)
    assert [name for name, *_ in page.evaluate(DRAWN)] == before


def test_a_new_group_beside_one_that_runs_is_told_and_a_stopped_one_can_be_removed(
    editor: Editor, page: Page, host: ComfyHost
) -> None:
    open_demo(editor, steps=2, seed=511)
    panel = editor.open_panel()
    editor.run()
    expect(panel.get_by_test_id("paralleldit-run").first).to_contain_text("done", timeout=3 * PATIENCE_MS)
    editor.set_plan(group=7)
    expect(editor.plan("note")).to_have_text(re.compile("^Group 7 is new: it loads a second copy"))
    editor.set_plan(group=1)
    expect(editor.plan("note")).to_have_count(0)
    tell(host, {**event([], 0, state="stopped", model=None), "group": 5})
    section = page.locator("[data-group='5']")
    section.get_by_test_id("paralleldit-remove").click()
    expect(section).to_have_count(0)
    expect(page.locator("[data-group='1']").get_by_test_id("paralleldit-remove")).to_be_hidden()
    assert editor.problems == []
