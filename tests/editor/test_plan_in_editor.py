"""Parallelize Model in the real editor: it says what its plan does, and what is wrong with it, before queueing."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from demo.host import ComfyHost
from demo.workflow import api_prompt
from tests.support.editor.editor import PLAN_NODE, UNDO_STEPS, Editor, wait_for
from tests.support.editor.examples import FOLDER, NOTES, demo, open_demo

ROUTE, SETTINGS = "**/paralleldit/plan", "**/paralleldit/settings"
# Two unlike GPUs, of which one is used.
LEFT_OUT = {"key": "left_out", "values": {"cards": "GPU 1 (8 GB)", "own": "GPU 0 (12 GB)", "present": 2}, "text": ""}
STROKE = f"""() => Object.values({PLAN_NODE}.strokeStyles)
    .some((style) => style.call({PLAN_NODE})?.color === LiteGraph.NODE_ERROR_COLOUR)"""
OUTLINED = f"""() => {PLAN_NODE}.widgets
    .filter((widget) => widget.getOutlineColor() === LiteGraph.NODE_ERROR_COLOUR).map((widget) => widget.name)"""
SEEN = f"""() => {PLAN_NODE}.widgets
    .filter((widget) => !widget.hidden && (!widget.advanced || {PLAN_NODE}.showAdvanced) && widget.name !== 'mesh')
    .map((widget) => widget.name)"""
TOGGLE_ADVANCED = f"() => {PLAN_NODE}.toggleAdvanced()"
HEIGHT = f"() => {PLAN_NODE}.size[1]"
NODE = "2"  # its id, in the examples
FITS = re.compile(r"Fits: needs \d+ MiB of \d+\.\d GiB usable")
LAST = re.compile(r"Rank 1 on CPU: (positive|negative|batch 2/2), all tokens, \d+ MiB of weights")
HEADS = "ulysses=9 is more than the model's 8 heads. Lower it to 8 or less, or take ring=9."


def test_the_node_shows_its_mesh_and_marks_what_is_wrong(renderer: str, editor: Editor, page: Page) -> None:
    editor.prompt(demo())
    (note,) = page.evaluate(NOTES)
    expect(editor.plan("fit")).to_have_text(FITS)
    assert note["title"] == "Files and cards" and "Press **Run**" in note["text"] and not note["isTranslated"]
    tiles = page.get_by_role("list", name="2 ranks").get_by_role("listitem")
    expect(tiles.last).to_have_attribute("aria-label", LAST)
    expect(editor.plan("content:not(:empty)")).to_contain_text("run side by side (cfg=2)")
    editor.set_plan(mode="manual", cfg=2, ulysses=2)
    expect(editor.plan("title")).to_have_text("4 CPU ranks, cfg=2 × ulysses=2")
    expect(editor.plan("cell")).to_have_count(4)
    editor.set_plan(cfg=1, ulysses=9)
    alert = editor.plan("content").get_by_role("alert")
    expect(alert).to_have_text(HEADS)
    assert page.evaluate(STROKE) and page.evaluate(OUTLINED) == ["ulysses"]
    editor.screenshot(f"plan-invalid-{renderer}")
    if renderer == "vue":
        expect(page.locator("[data-paralleldit-plan-error]")).to_have_text("ulysses")
    box, frame = alert.bounding_box(), alert.locator("..").locator("..").bounding_box()
    assert box["y"] + box["height"] <= frame["y"] + frame["height"] + 1, "the error is cut off"
    editor.set_plan(ulysses=4)
    expect(editor.plan("title")).to_have_text("4 CPU ranks, ulysses=4")
    assert not page.evaluate(STROKE) and page.evaluate(OUTLINED) == []


def test_auto_shows_what_it_looks_at_and_manual_what_it_has(renderer: str, editor: Editor, page: Page) -> None:
    prompt = editor.prompt(demo())
    content = editor.plan("content:not(:empty)")
    expect(content).to_contain_text("run side by side (cfg=2)")
    assert page.evaluate(SEEN) == ["mode"]
    rows = page.locator(f'[data-node-id="{NODE}"] [data-testid="widget-layout-field-label"]')
    expect(rows).to_have_count(1 if renderer == "vue" else 0)
    expect(content).to_contain_text("The fastest plans")
    short = page.evaluate(HEIGHT)
    editor.screenshot(f"plan-auto-{renderer}")
    editor.set_plan(mode="manual", cfg=1, ulysses=2)
    expect(content).to_contain_text("2 CPU ranks, ulysses=2")
    assert page.evaluate(SEEN) == ["mode", "dp", "cfg", "ring", "ulysses", "pipefusion"]
    expect(rows).to_have_count(6 if renderer == "vue" else 0)
    editor.screenshot(f"plan-manual-{renderer}")
    editor.set_plan(mode="auto", ulysses=1)
    expect(content).to_contain_text("run side by side (cfg=2)")
    assert page.evaluate(SEEN) == ["mode"]
    if renderer == "canvas":
        wait_for(page, f"() => Math.abs(({HEIGHT})() - {short}) <= 2", timeout=60_000)
        page.evaluate(TOGGLE_ADVANCED)
        assert page.evaluate(SEEN) == ["mode", "group"]
        page.evaluate(TOGGLE_ADVANCED)
    assert page.evaluate("async () => (await window.app.graphToPrompt()).output") == prompt


def test_the_node_shows_the_fastest_plans_and_what_a_step_takes_with_buttons_for_the_next_step(
    editor: Editor, page: Page
) -> None:
    """Over a link that is slow: the answer of a machine that has one."""
    told = {"seconds": 2.5, "bytes": 3 << 30, "fits": True, "has_run": False, "is_alone": False}
    best = [{**told, "plan": f"{axis}=2", "values": {axis: 2}} for axis in ("dp", "ulysses", "ring")]
    best[2]["fits"] = False
    chosen: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        one = {**best[0], "plan": "one rank"}
        predicted = {"plan": best[0], "best": best, "one_device": one, "alone": True, "is_measured": False}
        route.fulfill(json={**route.fetch().json(), "predicted": predicted, "remarks": [LEFT_OUT]})

    def answer_settings(route: Route) -> None:
        """Refuses two GPUs at first, as this machine has none."""
        if route.request.method == "GET":
            route.fulfill(json={"settings": [], "cards": [{"index": 0}, {"index": 1}], "outdated": []})
            return
        chosen.append(route.request.post_data_json)
        route.continue_() if len(chosen) == 1 else route.fulfill(json={"settings": [], "cards": [], "outdated": [1]})

    with editor.routed(ROUTE, answer), editor.routed(SETTINGS, answer_settings):
        editor.prompt(demo())
        rows = page.get_by_test_id("paralleldit-plan-predicted").locator("li")
        expect(rows).to_have_count(3)
        expect(rows.first).to_have_text("dp=2: 2.5 s a step, needs 3.0 GiBUse")
        expect(rows.first).to_have_attribute("aria-current", "true")
        expect(rows.last).to_contain_text("does not fit")
        expect(rows.last).to_have_class("paralleldit-plan-lacks")
        expect(rows.last.get_by_test_id("paralleldit-use")).to_have_count(0)
        expect(editor.plan("step")).to_have_text("About 2.5 s a step, as fast as one device (not measured yet)")
        all_gpus = page.get_by_test_id("paralleldit-use-all")
        expect(all_gpus).to_have_text("Use both")
        all_gpus.click()
        expect(page.get_by_text("gpus chooses GPUs, but the ranks compute on the CPU")).to_be_visible()
        with page.expect_request(ROUTE):
            all_gpus.click()
        expect(page.get_by_text("Running workers keep the old ones.")).to_be_visible()
        assert chosen == [{"gpus": [0, 1]}] * 2
        editor.plan("why summary").click()
        editor.screenshot("plan-use-both")
        rows.nth(1).get_by_test_id("paralleldit-use").click()
        expect(rows.first.get_by_test_id("paralleldit-use")).to_have_count(0)  # what a person has chosen
        assert editor.plan_values("mode", "dp", "ulysses") == ["manual", 1, 2]


def test_the_panel_shows_which_weights_the_ranks_fetch(editor: Editor) -> None:
    shared = {"mode": "manual", "ulysses": 2, "weights": "shared", "weight_blocks": 3}
    open_demo(editor, shared, steps=2, seed=81)
    panel = editor.open_panel()
    editor.run()
    row = panel.get_by_test_id("paralleldit-weights")
    expect(row).to_contain_text("Shared weights: 3 of")
    expect(row).to_contain_text("(measured)")
    open_demo(editor, {**shared, "weights": "whole"}, steps=2, seed=82)
    editor.run()
    expect(row).to_be_hidden()
    assert editor.problems == []


@pytest.mark.parametrize("name", ["demo", "pipefusion"])
def test_nothing_of_the_drawing_is_saved_or_queued(name: str, editor: Editor, host: ComfyHost) -> None:
    workflow = json.loads((FOLDER / f"{name}.json").read_text())
    prompt = editor.prompt(workflow)
    expect(editor.plan("mesh")).to_be_attached()
    assert prompt[NODE]["inputs"] == api_prompt(workflow, host.object_info())[NODE]["inputs"]
    saved, given = (
        next(node for node in nodes if str(node["id"]) == NODE)
        for nodes in (editor.page.evaluate("() => window.app.graph.serialize()")["nodes"], workflow["nodes"])
    )
    assert saved["widgets_values"] == given["widgets_values"]
    assert editor.prompt(workflow) == prompt


def test_a_changed_degree_is_one_step_to_undo(editor: Editor, page: Page) -> None:
    editor.prompt(demo())
    title = editor.plan("title")
    expect(title).to_have_text("Automatic plan: 2 CPU ranks, cfg=2")
    page.mouse.click(1500, 850)  # upon which the editor looks for what has changed
    steps = page.evaluate(UNDO_STEPS)
    for ring in (3, 4):
        editor.set_plan(mode="manual", cfg=1, ring=ring)
        page.mouse.click(1500, 850)
        expect(title).to_have_text(f"{ring} CPU ranks, ring={ring}")
        page.mouse.click(1500, 850)
        steps += 1
        assert page.evaluate(UNDO_STEPS) == steps
    page.keyboard.press("Control+z")
    expect(title).to_have_text("3 CPU ranks, ring=3")
