"""What a person does and sees in the editor: real Chromium, real host, real workers. Screenshots are kept."""

from __future__ import annotations

import json
import re
from typing import Any

import psutil
import pytest
from playwright.sync_api import Locator, Page, expect

from demo.host import ComfyHost
from tests.support.editor.editor import PARALLELIZE, PATIENCE_MS, PLAN_NODE, Editor, wait_for
from tests.support.editor.examples import FOLDER, open_demo
from tests.support.editor.settings import ask_settings, settings_kept
from tests.support.host.faults import wait_until
from tests.support.host.graphs import alive, status, worker_processes

SAMPLER = "ParallelDiT_Sampler"
BUTTONS = ("start", "stop", "restart", "park")
LONG = 3000  # steps, of a job that does not end by itself while the test looks
HAS_IMAGE = "() => window.app.graph.nodes.some((node) => node.type === 'SaveImage' && node.imgs?.length)"
VAE_LINK = 99
VALUES = ["manual", 1, 2, 1, 1, "native", 2, 4, 3, "host", 5, "int4", "1, 0.5", "on"]
FORMER_VALUES = ["radial", "allowed", "once"]
SOCKETS = "(type) => window.app.graph.findNodesByType(type)[0].inputs.map(({ name }) => name)"
LINKS = """() => {
    const { nodes, links } = window.app.graph
    const sort = (ids) => ids.filter((id) => id != null).sort((one, other) => one - other)
    const given = nodes.flatMap(({ outputs }) => outputs.flatMap((output) => output.links))
    const taken = nodes.flatMap(({ inputs }) => inputs.map(({ link }) => link))
    return { kept: sort([...links.keys()]), taken: sort(taken), given: sort(given) }
}"""


def former_inputs(**kinds: str) -> list[dict[str, Any]]:
    """As they are saved, by name and type."""
    return [{"name": name, "type": kind, "widget": {"name": name}, "link": None} for name, kind in kinds.items()]


def step_of(panel: Locator) -> int:
    """The step that the panel tells of; 0 while it tells of none."""
    shown = panel.get_by_test_id("paralleldit-step").filter(visible=True).all_inner_texts()
    found = re.search(r"(\d+) of \d+", " ".join(shown))
    return int(found[1]) if found else 0


def wait_for_step(panel: Locator, step: int) -> None:
    """Until the panel tells of that step, or a later one."""
    for _ in range(PATIENCE_MS // 100):
        if step_of(panel) >= step:
            return
        panel.page.wait_for_timeout(100)
    pytest.fail(f"the panel stays at step {step_of(panel)}")


def test_a_workflow_with_inputs_that_are_gone_opens_with_its_other_values(editor: Editor, page: Page) -> None:
    """Of Parallelize Model four inputs; of Parallel Sampler `compare`, a linked VAE, and the step caches."""
    workflow = json.loads((FOLDER / "pipefusion.json").read_text())
    links = [link for link, *_ in workflow["links"]]
    plan, sampler, loader = (
        next(node for node in workflow["nodes"] if node["type"] == kind) for kind in (PARALLELIZE, SAMPLER, "VAELoader")
    )
    plan["widgets_values"] = [*VALUES, *FORMER_VALUES, 2, 3]
    plan["inputs"] += former_inputs(sparse="COMBO", lossy="COMBO", compare="COMBO", pieces="INT")
    sampler["widgets_values"] = [7, "fixed", 12, 2.5, "Euler", 0.75, "once", "taylorseer", 0.15, 3]
    workflow["links"].append([VAE_LINK, loader["id"], 0, sampler["id"], len(sampler["inputs"]), "VAE"])
    loader["outputs"][0]["links"].append(VAE_LINK)
    sampler["inputs"].append({"name": "vae", "type": "VAE", "link": VAE_LINK})
    sampler["inputs"] += former_inputs(compare="COMBO", cache="COMBO", cache_threshold="FLOAT", cache_interval="INT")
    prompt = {each["class_type"]: each["inputs"] for each in editor.prompt(workflow).values()}
    values, sampled = (
        {name: value for name, value in prompt[kind].items() if not isinstance(value, list)}
        for kind in (PARALLELIZE, SAMPLER)
    )
    assert [*values.values()] == [*VALUES, 3] and (values["compile"], values["group"]) == ("on", 3)
    assert sampled == {"seed": 7, "steps": 12, "cfg": 2.5, "scheduler": "Euler", "denoise": 0.75}
    assert prompt[SAMPLER].keys() - sampled == {"model", "positive", "negative", "latent_image"}
    sockets = {name for kind in (PARALLELIZE, SAMPLER) for name in page.evaluate(SOCKETS, kind)}
    assert sockets >= values.keys() | sampled.keys() and sockets <= prompt[PARALLELIZE].keys() | prompt[SAMPLER].keys()
    assert page.evaluate(LINKS) == {"kept": links, "taken": links, "given": links}
    assert editor.problems == []


def test_an_old_plan_node_is_replaced_by_one_with_its_values(editor: Editor, page: Page) -> None:
    workflow = json.loads((FOLDER / "demo.json").read_text())
    workflow["nodes"] = [node for node in workflow["nodes"] if node["type"] == "VAELoader"]
    workflow["links"], (node,) = [], workflow["nodes"]
    node |= {"type": "ParallelDiT_Plan", "outputs": [], "widgets_values": [*VALUES, *FORMER_VALUES, 2]}
    editor.open(workflow)
    page.get_by_role("button", name="View details").click()
    page.get_by_role("button", name="Replace Node").click()
    wait_for(page, f"() => {PLAN_NODE}")
    values = page.evaluate(f"() => {PLAN_NODE}.widgets.map(({{ value }}) => value)")
    assert values[: len(VALUES) + 1] == [*VALUES, 1]


def test_the_demo_draws_while_the_panel_shows_ranks_and_steps_and_then_that_it_is_done(
    editor: Editor, page: Page
) -> None:
    open_demo(editor, steps=50, seed=102)
    panel = editor.open_panel()
    editor.run()
    for rank in (0, 1):
        expect(panel.get_by_test_id(f"paralleldit-rank-{rank}")).to_have_attribute("title", re.compile("Weights: "))
    wait_for_step(panel, 1)
    first = step_of(panel)
    wait_for_step(panel, first + 5)
    editor.screenshot("panel-dark")
    wait_for(page, HAS_IMAGE)
    expect(panel.get_by_test_id("paralleldit-state")).to_contain_text("ready", ignore_case=True)
    run = panel.get_by_test_id("paralleldit-run").first
    expect(run).to_contain_text("50 steps")
    expect(run).to_contain_text("cfg=2")
    expect(run).to_contain_text("in all")
    with page.expect_download() as download:
        panel.get_by_test_id("paralleldit-trace").click()
    assert json.loads(download.value.path().read_text())["traceEvents"]
    editor.screenshot("panel-done")
    assert editor.problems == []


def test_a_job_is_cancelled_from_the_button(editor: Editor, page: Page) -> None:
    open_demo(editor, steps=LONG, seed=104)
    panel = editor.open_panel()
    editor.run()
    wait_for_step(panel, 2)
    page.get_by_role("button", name="Cancel current run").click()
    expect(panel.get_by_test_id("paralleldit-state")).to_contain_text("ready", ignore_case=True)
    expect(panel.get_by_test_id("paralleldit-run").first).to_contain_text("cancelled", ignore_case=True)
    assert editor.problems == []


def test_a_reload_in_the_middle_of_a_job_loses_nothing_of_the_panel(
    editor: Editor, page: Page, host: ComfyHost
) -> None:
    open_demo(editor, steps=LONG, seed=105)
    editor.run()
    wait_for_step(editor.open_panel(), 2)
    editor.reload()
    panel = editor.open_panel()
    expect(panel.get_by_test_id("paralleldit-state")).to_contain_text("running", ignore_case=True)
    wait_for_step(panel, step_of(panel) + 5)
    host.interrupt()  # the editor's own button does not know of jobs from before the reload
    expect(panel.get_by_test_id("paralleldit-state")).to_contain_text("ready", ignore_case=True)
    assert editor.problems == []


def log_size(pid: int) -> str:
    """What a rank was told of it, in megabytes."""
    return psutil.Process(pid).environ()["PARALLELDIT_LOG_MEGABYTES"]


def test_the_group_is_parked_restarted_stopped_and_started_by_the_panels_buttons(
    editor: Editor, page: Page, host: ComfyHost
) -> None:
    open_demo(editor, steps=2, seed=108)
    panel = editor.open_panel()
    state, model = panel.get_by_test_id("paralleldit-state"), panel.get_by_test_id("paralleldit-model")
    start, stop, restart, park = (panel.get_by_test_id(f"paralleldit-{name}") for name in BUTTONS)
    editor.run()
    wait_for(page, HAS_IMAGE)
    expect(model.get_by_text("shapes-dit")).to_have_attribute("title", re.compile("DiT"))
    expect(state).to_contain_text("ready", ignore_case=True)
    park.click()
    expect(model).to_be_hidden()
    expect(state).to_have_text("Parked")  # on the CPU, park is unload
    expect(park).to_have_attribute("aria-disabled", "true")
    editor.screenshot("panel-parked")
    before, old = status(host)["pids"], worker_processes(host, 1)
    with settings_kept(host) as file:
        assert ask_settings(host, {"log_megabytes": 7})["outdated"][0] == 1
        expect(panel.get_by_text("The settings have changed. Restart applies them.")).to_be_visible()
        assert log_size(before[0]) == "8.0"
        file.write_text('{"log_megabytes": 9}')  # by hand
        restart.click()
        expect(panel.get_by_title(f"process {before[0]}")).to_have_count(0)
        expect(state).to_contain_text("ready", ignore_case=True)
        expect(panel.get_by_text("Restart applies them.")).to_have_count(0)
        assert not set(status(host)["pids"]) & set(before)
        assert log_size(status(host)["pids"][0]) == "9.0"
    wait_until(lambda: not any(map(alive, old)))
    editor.screenshot("panel-restarted")
    old = worker_processes(host, 1)
    stop.click()
    expect(state).to_contain_text("stopped", ignore_case=True)
    wait_until(lambda: not any(map(alive, old)))
    expect(restart).to_have_attribute("aria-disabled", "true")
    start.click()
    expect(state).to_contain_text("ready", ignore_case=True)
    assert status(host)["pids"]
    assert editor.problems == []


def test_stop_asks_first_where_a_job_runs(editor: Editor, page: Page) -> None:
    open_demo(editor, steps=LONG, seed=107)
    panel = editor.open_panel()
    editor.run()
    wait_for_step(panel, 2)
    stop, dialog = panel.get_by_test_id("paralleldit-stop"), page.get_by_role("dialog")
    stop.click()
    dialog.get_by_role("button", name="Cancel").click()
    wait_for_step(panel, step_of(panel) + 2)  # it goes on
    stop.click()
    dialog.get_by_role("button", name="Confirm").click()
    expect(panel.get_by_test_id("paralleldit-state")).to_contain_text("stopped", ignore_case=True)
    expect(page.get_by_test_id("paralleldit-error")).to_contain_text("was stopped")  # in a step, or between two
    assert editor.problems == []
