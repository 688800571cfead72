"""What Parallelize Model offers in place of a plan, and what it says of one before the run."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from demo.host import ComfyHost
from tests.support.editor.editor import PATIENCE_MS, Editor
from tests.support.editor.examples import EXAMPLES, demo, open_demo, open_example
from tests.support.editor.groups import event, tell

ROUTE = "**/paralleldit/plan"
PLAN_NODE = "window.app.graph.nodes.find((node) => node.type === 'ParallelDiT_Parallelize')"
VALUES = f"""(names) => names.map((name) => {PLAN_NODE}.widgets.find((widget) => widget.name === name).value)"""
TOGGLE_ADVANCED = f"() => {PLAN_NODE}.toggleAdvanced()"
# Name, top and height of each widget that is drawn, from above.
DRAWN = f"""() => {PLAN_NODE}.widgets
    .filter((widget) => !widget.hidden && (!widget.advanced || {PLAN_NODE}.showAdvanced))
    .map((widget) => [widget.name, widget.y, widget.computedHeight ?? LiteGraph.NODE_WIDGET_HEIGHT])"""
FOCUSED = "() => [document.activeElement.localName, document.activeElement.closest('details')?.open]"
LEGIBLE = 0.571  # below this scale, ComfyUI draws no text


def content(page: Page) -> Locator:
    return page.locator(".dom-widget .paralleldit-plan-content:not(:empty)")


def values(page: Page, *names: str) -> list[Any]:
    return page.evaluate(VALUES, [*names])


def test_templates_open_at_a_scale_at_which_their_text_is_drawn(shared_editor: Editor) -> None:
    page, scales = shared_editor.page, {}
    before = page.viewport_size
    page.set_viewport_size({"width": 1400, "height": 900})
    try:
        for name in EXAMPLES:
            open_example(shared_editor, name)
            scales[name] = page.evaluate("window.app.canvas.ds.scale")
    finally:
        page.set_viewport_size(before)
    assert min(scales.values()) > LEGIBLE and scales["demo"] > 0.6, scales


def test_the_first_switch_to_manual_takes_the_plan_of_auto(shared_editor: Editor) -> None:
    page = shared_editor.page
    shared_editor.prompt(demo())
    title = page.locator(".paralleldit-plan-title")
    expect(title).to_have_text("Automatic plan: 2 CPU ranks, cfg=2")
    shared_editor.set_widgets("ParallelDiT_Parallelize", mode="manual")
    expect(title).to_have_text("2 CPU ranks, cfg=2")
    assert values(page, "mode", "dp", "cfg", "ulysses") == ["manual", 1, 2, 1]
    shared_editor.set_widgets("ParallelDiT_Parallelize", cfg=1, ring=2, mode="auto")
    expect(title).to_have_text("Automatic plan: 2 CPU ranks, cfg=2")
    shared_editor.set_widgets("ParallelDiT_Parallelize", mode="manual")
    assert values(page, "cfg", "ring") == [1, 2], "a person's degrees stay"


def test_a_plan_that_cannot_run_has_buttons_for_two_that_can(shared_editor: Editor) -> None:
    page = shared_editor.page
    shared_editor.prompt(demo())
    shared_editor.set_widgets("ParallelDiT_Parallelize", mode="manual", cfg=1, ulysses=9)
    alert, buttons = content(page).get_by_role("alert"), content(page).locator(".paralleldit-plan-offers button")
    expect(alert).to_contain_text("ulysses=9 is more than the model's 8 heads")
    expect(buttons).to_have_count(2)
    offered = buttons.last.inner_text()
    buttons.last.click()
    expect(alert).to_have_count(0)
    (ulysses,) = values(page, "ulysses")
    assert offered == f"Use ulysses={ulysses}" and 1 < ulysses <= 8
    expect(page.locator(".paralleldit-plan-title")).to_contain_text(f"ulysses={ulysses}")
    shared_editor.set_widgets("ParallelDiT_Parallelize", ulysses=9)
    expect(buttons.first).to_have_text("Use auto")
    buttons.first.click()
    expect(page.locator(".paralleldit-plan-title")).to_contain_text("Automatic plan")
    assert values(page, "mode") == ["auto"]


def test_a_plan_that_changes_the_image_says_so_in_amber(shared_editor: Editor) -> None:
    page = shared_editor.page
    shared_editor.prompt(demo())
    shared_editor.set_widgets("ParallelDiT_Parallelize", mode="manual", cfg=1, pipefusion=2, patches=2)
    notes = content(page).locator(".paralleldit-plan-note")
    expect(notes).to_have_text(["PipeFusion's patches change the image a little."])
    shared_editor.set_widgets("ParallelDiT_Parallelize", patches=1)
    expect(notes).to_have_count(0)
    shared_editor.set_widgets("ParallelDiT_Parallelize", pipefusion=1, ulysses=2, exchange_dtype="int4")
    expect(notes).to_have_text(["The int4 exchange changes the image a little."])


def test_a_plan_that_does_not_fit_is_red_without_a_button(shared_editor: Editor) -> None:
    page = shared_editor.page

    def answer(route: Route) -> None:
        told = route.fetch().json()
        if told["predicted"]:  # else it answers a question of the test before, about a plan that cannot run
            told["predicted"]["best"][0] |= {"fits": False}
        route.fulfill(json=told)

    page.route(ROUTE, answer)
    try:
        shared_editor.prompt(demo())
        row = page.get_by_test_id("paralleldit-plan-predicted").locator("li").first
        expect(row).to_contain_text("does not fit")
        expect(row).to_have_class("paralleldit-plan-lacks")
        expect(row.get_by_test_id("paralleldit-use")).to_have_count(0)
    finally:
        page.unroute(ROUTE)


def test_the_node_says_that_it_waits_for_an_answer_about_another_file(shared_editor: Editor) -> None:
    page, held, is_released = shared_editor.page, list[Route](), False
    page.route(ROUTE, lambda route: route.continue_() if is_released else held.append(route))
    try:
        shared_editor.prompt(demo())
        expect(content(page)).to_have_text("Reading demo: coloured shapes (64×64) to plan it…")
        is_released = True
        for route in held:
            route.continue_()
        expect(page.locator(".paralleldit-plan-title")).to_be_visible()
    finally:
        page.unroute(ROUTE)


def test_a_plan_that_is_chosen_by_keyboard_leaves_the_focus_and_the_fold_open(shared_editor: Editor) -> None:
    page = shared_editor.page
    shared_editor.prompt(demo())
    summary = content(page).locator(".paralleldit-plan-why summary")
    summary.press("Enter")
    button = page.get_by_test_id("paralleldit-plan-predicted").locator("li").last.get_by_test_id("paralleldit-use")
    button.focus()
    button.press("Enter")
    expect(page.locator(".paralleldit-plan-title")).not_to_contain_text("Automatic plan")
    assert page.evaluate(FOCUSED) == ["summary", True]


def test_all_settings_are_shown_below_those_that_were_without_a_hole(shared_editor: Editor) -> None:
    page = shared_editor.page
    shared_editor.prompt(demo())
    title = page.locator(".paralleldit-plan-title")
    expect(title).to_have_text("Automatic plan: 2 CPU ranks, cfg=2")
    shared_editor.set_widgets("ParallelDiT_Parallelize", mode="manual")
    expect(title).to_have_text("2 CPU ranks, cfg=2")
    before = [name for name, *_ in page.evaluate(DRAWN)]
    page.evaluate(TOGGLE_ADVANCED)
    page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    shown = page.evaluate(DRAWN)
    assert {*before} < {name for name, *_ in shown}
    ends = [top + height for _, top, height in shown]
    gaps = [top - end for end, (_, top, _) in zip(ends, shown[1:], strict=False)]
    assert all(gap < shown[0][2] for gap in gaps), gaps
    page.evaluate(TOGGLE_ADVANCED)
    assert [name for name, *_ in page.evaluate(DRAWN)] == before


def test_a_new_group_beside_one_that_runs_is_told_and_a_stopped_one_can_be_removed(
    shared_editor: Editor, host: ComfyHost
) -> None:
    page = shared_editor.page
    open_demo(shared_editor, steps=2, seed=511)
    panel = shared_editor.open_panel()
    shared_editor.run()
    expect(panel.get_by_test_id("paralleldit-run").first).to_contain_text("done", timeout=3 * PATIENCE_MS)
    shared_editor.set_widgets("ParallelDiT_Parallelize", group=7)
    expect(content(page)).to_contain_text("Group 7 is new: it loads a second copy.")
    shared_editor.set_widgets("ParallelDiT_Parallelize", group=1)
    expect(content(page)).not_to_contain_text("is new")
    tell(host, {**event([], 0, state="stopped", model=None), "group": 5})
    section = page.locator("[data-group='5']")
    section.get_by_test_id("paralleldit-remove").click()
    expect(section).to_have_count(0)
    expect(page.locator("[data-group='1']").get_by_test_id("paralleldit-remove")).to_be_hidden()
    assert shared_editor.problems == []
