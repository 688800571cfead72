"""Parallelize Model in the real editor: it says what its plan does, and what is wrong with it, before queueing."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from demo.host import REPOSITORY, ComfyHost
from demo.workflow import api_prompt
from tests.support.editor.editor import Editor, wait_for
from tests.support.editor.examples import NOTES, demo, open_demo

TEMPLATES = REPOSITORY / "example_workflows"
ROUTE, SETTINGS = "**/paralleldit/plan", "**/paralleldit/settings"
# Two unlike GPUs, of which one is used.
LEFT_OUT = {"key": "left_out", "values": {"cards": "GPU 1 (8 GB)", "own": "GPU 0 (12 GB)", "present": 2}, "text": ""}
STROKE = """() => {
    const node = window.app.graph.nodes.find((node) => node.type === 'ParallelDiT_Parallelize')
    return Object.values(node.strokeStyles).some((style) => style.call(node)?.color === LiteGraph.NODE_ERROR_COLOUR)
}"""
OUTLINED = """() => window.app.graph.nodes.find((node) => node.type === 'ParallelDiT_Parallelize').widgets
    .filter((widget) => widget.getOutlineColor() === LiteGraph.NODE_ERROR_COLOUR).map((widget) => widget.name)"""
PLAN_NODE = "window.app.graph.nodes.find((node) => node.type === 'ParallelDiT_Parallelize')"
OF_PLAN = f"""() => ['mode', 'dp', 'ulysses'].map((name) => {PLAN_NODE}.widgets
    .find((widget) => widget.name === name).value)"""
SEEN = f"""() => {PLAN_NODE}.widgets
    .filter((widget) => !widget.hidden && (!widget.advanced || {PLAN_NODE}.showAdvanced) && widget.name !== 'mesh')
    .map((widget) => widget.name)"""
HAS_ADVANCED = f"() => {PLAN_NODE}.hasAdvancedWidgets()"
TOGGLE_ADVANCED = f"() => {PLAN_NODE}.toggleAdvanced()"
HEIGHT = f"() => {PLAN_NODE}.size[1]"
NODE = "2"  # its id, in the examples
UNDO_STEPS = "window.app.extensionManager.workflow.activeWorkflow.changeTracker.undoQueue.length"
FITS = re.compile(r"Fits: needs \d+ MiB of \d+\.\d GiB usable")
LAST = re.compile(r"Rank 1 on CPU: (positive|negative|batch 2/2), all tokens, \d+ MiB of weights")
HEADS = "ulysses=9 is more than the model's 8 heads. Lower it to 8 or less, or take ring=9."


def template(name: str) -> dict[str, Any]:
    return json.loads((TEMPLATES / f"{name}.json").read_text())


def test_the_node_shows_its_mesh_and_marks_what_is_wrong(renderer: str, shared_editor: Editor) -> None:
    page = shared_editor.page
    shared_editor.prompt(demo())
    (note,) = page.evaluate(NOTES)
    assert note["title"] == "Files and cards" and "Press **Run**" in note["text"] and not note["isTranslated"]
    tiles = page.get_by_role("list", name="2 ranks").get_by_role("listitem")
    expect(tiles.last).to_have_attribute("aria-label", LAST)
    expect(page.locator(".paralleldit-plan-content:not(:empty)")).to_contain_text("run side by side (cfg=2)")
    shared_editor.set_widgets("ParallelDiT_Parallelize", mode="manual", cfg=2, ulysses=2)
    expect(page.locator(".paralleldit-plan-title")).to_have_text("4 CPU ranks, cfg=2 × ulysses=2")
    expect(page.locator(".paralleldit-plan-cell")).to_have_count(4)
    shared_editor.set_widgets("ParallelDiT_Parallelize", cfg=1, ulysses=9)
    alert = page.locator(".paralleldit-plan").get_by_role("alert")
    expect(alert).to_have_text(HEADS)
    assert page.evaluate(STROKE) and page.evaluate(OUTLINED) == ["ulysses"]
    shared_editor.screenshot(f"plan-invalid-{renderer}")
    if renderer == "vue":
        expect(page.locator("[data-paralleldit-plan-error]")).to_have_text("ulysses")
    box, frame = alert.bounding_box(), alert.locator("..").locator("..").bounding_box()
    assert box["y"] + box["height"] <= frame["y"] + frame["height"] + 1, "the error is cut off"
    shared_editor.set_widgets("ParallelDiT_Parallelize", ulysses=4)
    expect(page.locator(".paralleldit-plan-title")).to_have_text("4 CPU ranks, ulysses=4")
    assert not page.evaluate(STROKE) and page.evaluate(OUTLINED) == []


def test_auto_shows_what_it_looks_at_and_manual_what_it_has(renderer: str, shared_editor: Editor) -> None:
    page = shared_editor.page
    saved = demo()
    prompt = shared_editor.prompt(saved)
    content = page.locator(".paralleldit-plan-content:not(:empty)")
    expect(content).to_contain_text("run side by side (cfg=2)")
    assert page.evaluate(SEEN) == ["mode"]
    rows = page.locator(f'[data-node-id="{NODE}"] [data-testid="widget-layout-field-label"]')
    expect(rows).to_have_count(1 if renderer == "vue" else 0)
    expect(content).to_contain_text("The fastest plans")
    short = page.evaluate(HEIGHT)
    shared_editor.screenshot(f"plan-auto-{renderer}")
    shared_editor.set_widgets("ParallelDiT_Parallelize", mode="manual", cfg=1, ulysses=2)
    expect(content).to_contain_text("2 CPU ranks, ulysses=2")
    assert page.evaluate(SEEN) == ["mode", "dp", "cfg", "ring", "ulysses", "pipefusion"]
    expect(rows).to_have_count(6 if renderer == "vue" else 0)
    shared_editor.screenshot(f"plan-manual-{renderer}")
    if renderer == "canvas":
        assert page.evaluate(HAS_ADVANCED)
        page.evaluate(TOGGLE_ADVANCED)
        seen = {*page.evaluate(SEEN)}
        assert {"attention", "weights", "speeds", "compile", "group"} < seen
        page.evaluate(TOGGLE_ADVANCED)
    shared_editor.set_widgets("ParallelDiT_Parallelize", mode="auto", ulysses=1)
    expect(content).to_contain_text("run side by side (cfg=2)")
    assert page.evaluate(SEEN) == ["mode"]
    if renderer == "canvas":
        wait_for(page, f"() => Math.abs(({HEIGHT})() - {short}) <= 2", timeout=60_000)
        page.evaluate(TOGGLE_ADVANCED)
        assert page.evaluate(SEEN) == ["mode", "group"]
        page.evaluate(TOGGLE_ADVANCED)
    assert page.evaluate("async () => (await window.app.graphToPrompt()).output") == prompt


def test_the_node_says_what_weights_take_and_marks_that_nobody_can_share_them(shared_editor: Editor) -> None:
    page = shared_editor.page
    shared_editor.prompt(demo())
    shared_editor.set_widgets("ParallelDiT_Parallelize", mode="manual", cfg=1, ulysses=2)
    expect(page.locator(".paralleldit-plan-fit")).to_have_text(FITS)
    expect(page.locator(".paralleldit-plan-memory")).to_contain_text("The fastest plans")
    shared_editor.set_widgets("ParallelDiT_Parallelize", weights="shared", weight_blocks=3)
    content = page.locator(".paralleldit-plan-content:not(:empty)")
    expect(content).to_contain_text("blocks are shared: a rank keeps a part of each")
    shared_editor.set_widgets("ParallelDiT_Parallelize", ulysses=1)
    expect(content.get_by_role("alert")).to_contain_text(
        "weights=shared needs ranks that compute with the same weights"
    )
    assert page.evaluate(OUTLINED) == ["weights"]


def test_the_node_shows_the_fastest_plans_and_what_a_step_takes_with_buttons_for_the_next_step(
    shared_editor: Editor,
) -> None:
    """Over a link that is slow: the answer of a machine that has one."""
    page = shared_editor.page
    best = [
        {
            "plan": f"{axis}=2",
            "values": {axis: 2},
            "seconds": 2.5,
            "bytes": 3 << 30,
            "fits": True,
            "has_run": False,
            "is_alone": False,
        }
        for axis in ("dp", "ulysses", "ring")
    ]

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

    chosen: list[dict[str, Any]] = []
    page.route(ROUTE, answer)
    page.route(SETTINGS, answer_settings)
    try:
        shared_editor.prompt(demo())
        rows = page.get_by_test_id("paralleldit-plan-predicted").locator("li")
        expect(rows).to_have_count(3)
        expect(rows.first).to_have_text("dp=2: 2.5 s a step, needs 3.0 GiBUse")
        expect(rows.first).to_have_attribute("aria-current", "true")
        expect(page.locator(".paralleldit-plan-step")).to_have_text(
            "About 2.5 s a step, as fast as one device (not measured yet)"
        )
        all_gpus = page.get_by_test_id("paralleldit-use-all")
        expect(all_gpus).to_have_text("Use both")
        all_gpus.click()
        expect(page.get_by_text("gpus chooses GPUs, but the ranks compute on the CPU")).to_be_visible()
        with page.expect_request(ROUTE):
            all_gpus.click()
        expect(page.get_by_text("Running workers keep the old ones.")).to_be_visible()
        assert chosen == [{"gpus": [0, 1]}] * 2
        page.locator(".paralleldit-plan-why summary").click()
        shared_editor.screenshot("plan-use-both")
        rows.nth(1).get_by_test_id("paralleldit-use").click()
        expect(rows.first.get_by_test_id("paralleldit-use")).to_have_count(0)  # what a person has chosen
        assert page.evaluate(OF_PLAN) == ["manual", 1, 2]
    finally:
        page.unroute(ROUTE)
        page.unroute(SETTINGS)


def test_the_panel_shows_what_the_ranks_tell(shared_editor: Editor) -> None:
    shared = {"mode": "manual", "ulysses": 2, "weights": "shared", "weight_blocks": 3}
    open_demo(shared_editor, shared, steps=2, seed=81)
    panel = shared_editor.open_panel()
    shared_editor.run()
    row = panel.get_by_test_id("paralleldit-weights")
    expect(row).to_contain_text("Shared weights: 3 of")
    expect(row).to_contain_text("(measured)")
    open_demo(shared_editor, {**shared, "weights": "whole"}, steps=2, seed=82)
    shared_editor.run()
    expect(row).to_be_hidden()
    assert shared_editor.problems == []


@pytest.mark.parametrize("name", ["demo", "pipefusion"])
def test_nothing_of_the_drawing_is_saved_or_queued(name: str, shared_editor: Editor, host: ComfyHost) -> None:
    workflow = template(name)
    prompt = shared_editor.prompt(workflow)
    expect(shared_editor.page.locator(".paralleldit-plan-mesh")).to_be_attached()
    assert prompt[NODE]["inputs"] == api_prompt(workflow, host.object_info())[NODE]["inputs"]
    saved, given = (
        next(node for node in nodes if str(node["id"]) == NODE)
        for nodes in (shared_editor.page.evaluate("() => window.app.graph.serialize()")["nodes"], workflow["nodes"])
    )
    assert saved["widgets_values"] == given["widgets_values"]
    assert shared_editor.prompt(workflow) == prompt


def test_a_changed_degree_is_one_step_to_undo(shared_editor: Editor) -> None:
    page = shared_editor.page
    shared_editor.prompt(demo())
    title = page.locator(".paralleldit-plan-title")
    expect(title).to_have_text("Automatic plan: 2 CPU ranks, cfg=2")
    page.mouse.click(1500, 850)  # upon which the editor looks for what has changed
    steps = page.evaluate(UNDO_STEPS)
    for ring in (3, 4):
        shared_editor.set_widgets("ParallelDiT_Parallelize", mode="manual", cfg=1, ring=ring)
        page.mouse.click(1500, 850)
        expect(title).to_have_text(f"{ring} CPU ranks, ring={ring}")
        page.mouse.click(1500, 850)
        steps += 1
        assert page.evaluate(UNDO_STEPS) == steps
    page.keyboard.press("Control+z")
    expect(title).to_have_text("3 CPU ranks, ring=3")
