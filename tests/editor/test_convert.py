"""Models and VAEs become parallel by a node behind them and stock again: by the menus, in subgraphs too, in one step to
undo; the workflows that ComfyUI ships come back as they were."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.editor.converted import (
    PARALLEL,
    PARALLELIZE_VAE,
    STOCK,
    execute,
    inserted,
    saved,
    types_of,
    without_view,
)
from tests.support.editor.editor import PARALLELIZE, UNDO_STEPS, Editor, insist, wait_for
from tests.support.templates.workflows import LOADERS, RELEASE, release, templates_folder, workflows

FOLDER = templates_folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="needs ComfyUI's templates package")
# A checkpoint; two of them with titles; loaders in a subgraph that shows their files; CLIP vision of a checkpoint; a
# loader in a subgraph in another.
QUICK = (
    *("default", "sdxl_simple_example", "03_video_wan2_2_14B_i2v_subgraphed", "04_hunyuan_3d_2.1_subgraphed"),
    *("image_flux2_text_to_image_9b", "image_netayume_lumina_t2i"),
)
OFFERED = "() => window.app.canvas.getCanvasMenuOptions().map((item) => item?.content)"
PROMPT = "async () => (await window.app.graphToPrompt()).output"
HAS_TYPE = """([type, has]) => [window.app.rootGraph, ...window.app.rootGraph.subgraphs.values()]
    .some((graph) => graph.nodes.some((node) => node.type === type)) === has"""
FIND = """(type) => [window.app.rootGraph, ...window.app.rootGraph.subgraphs.values()]
    .flatMap((graph) => graph.nodes).find((node) => node.type === type).id"""
AT_NODE = """(id) => {
    const {canvas} = window.app
    const graphs = [window.app.rootGraph, ...window.app.rootGraph.subgraphs.values()]
    const graph = graphs.find((graph) => graph.getNodeById(id))
    if (canvas.graph !== graph) canvas.setGraph(graph)
    const node = graph.getNodeById(id)
    canvas.centerOnNode(node)
    canvas.draw(true, true)
    return window.app.canvasPosToClientPos([node.pos[0] + 60, node.pos[1] - 15])
}"""
# What a node's menu offers of ours. With an item's name: chooses it.
MENU = """([id, choice]) => {
    const graphs = [window.app.rootGraph, ...window.app.rootGraph.subgraphs.values()]
    const node = graphs.map((graph) => graph.getNodeById(id)).find(Boolean)
    const items = window.app.canvas.getNodeMenuOptions(node).filter((item) => /^Make /.test(item?.content))
    items.find(({ content }) => content === choice)?.callback()
    return items.map(({ content, disabled }) => (disabled ? `(${content})` : content))
}"""


def template(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.json"
    if not path.is_file() and release() != RELEASE:
        pytest.skip(f"{release()} has no {name}")
    return json.loads(path.read_text())


def open_settled(editor: Editor, workflow: dict[str, Any]) -> dict[str, Any]:
    """Opens a workflow as the editor saves what it has saved. It orders the nodes of older ones as it loads them."""
    editor.open_alone(workflow)
    editor.open_alone(saved(editor.page))
    return saved(editor.page)


def check_round_trip(editor: Editor, name: str) -> None:
    editor.problems.clear()
    before = open_settled(editor, template(name))
    execute(editor.page, PARALLEL)
    between = saved(editor.page)
    assert list(inserted(before, between)), name
    execute(editor.page, STOCK)
    assert without_view(saved(editor.page)) == without_view(before), name
    assert not [problem for problem in editor.problems if "uncaught" in problem or "paralleldit" in problem], name


@pytest.mark.parametrize("name", QUICK)
def test_a_workflow_of_comfyuis_becomes_parallel_and_is_the_same_again(name: str, editor: Editor) -> None:
    check_round_trip(editor, name)


@pytest.mark.slow
def test_every_workflow_of_comfyuis_becomes_parallel_and_is_the_same_again(editor: Editor) -> None:
    wrong, names = [], [each.name for each in workflows() if has_loader(each.name)]
    assert len(names) > 200
    for name in names:
        try:
            check_round_trip(editor, name)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, f"{len(wrong)} of {len(names)}\n" + "\n".join(wrong)


def has_loader(name: str) -> bool:
    text = (FOLDER / f"{name}.json").read_text()
    return any(f'"type":"{kind}"' in "".join(text.split()) for kind in LOADERS)


def menu(editor: Editor, node: int, item: str) -> None:
    """Chooses an item of a node's menu."""
    page = editor.page
    entry = page.get_by_text(item, exact=True)

    def open_menu() -> None:
        page.mouse.click(*page.evaluate(AT_NODE, node), button="right")

    insist(open_menu, lambda ms: entry.wait_for(timeout=ms))
    entry.click()


def wait_for_node(editor: Editor, kind: str, *, there: bool = True) -> None:
    wait_for(editor.page, HAS_TYPE, arg=[kind, there])


def test_a_loader_in_a_subgraph_becomes_parallel_by_its_menu_in_one_step_to_undo(renderer: str, editor: Editor) -> None:
    page = editor.page
    editor.open_alone(template("image_flux2_text_to_image_9b"))
    loader = page.evaluate(FIND, "UNETLoader")
    page.evaluate(AT_NODE, loader)
    before, steps = saved(page), page.evaluate(UNDO_STEPS)
    menu(editor, loader, "Make parallel")
    wait_for_node(editor, PARALLELIZE)
    editor.screenshot(f"convert-subgraph-{renderer}")
    assert list(inserted(before, saved(page))) == ["UNETLoader"]
    assert page.evaluate(UNDO_STEPS) == steps + 1
    page.mouse.click(700, 830)  # on the empty canvas: what the editor notes then is no step more
    assert page.evaluate(UNDO_STEPS) == steps + 1
    page.keyboard.press("Control+z")
    wait_for_node(editor, PARALLELIZE, there=False)
    assert without_view(saved(page)) == without_view(before)
    menu(editor, loader, "Make parallel")
    wait_for_node(editor, PARALLELIZE)
    menu(editor, page.evaluate(FIND, PARALLELIZE), "Make stock")
    wait_for_node(editor, PARALLELIZE, there=False)
    assert without_view(saved(page)) == without_view(before)


def test_a_checkpoints_menu_has_an_item_for_its_model_and_one_for_its_vae(editor: Editor, page: Page) -> None:
    before = open_settled(editor, template("default"))
    loader, decode = page.evaluate(FIND, "CheckpointLoaderSimple"), page.evaluate(FIND, "VAEDecode")
    assert page.evaluate(MENU, [decode, ""]) == []
    assert page.evaluate(MENU, [loader, "Make VAE parallel"]) == ["Make parallel", "Make VAE parallel"]
    assert page.evaluate(MENU, [loader, "Make parallel"]) == ["Make parallel", "Make VAE stock"]
    prompt = page.evaluate(PROMPT)
    for kind, types in ((PARALLELIZE, ("CheckpointLoaderSimple", "KSampler")), (PARALLELIZE_VAE, ("VAEDecode",))):
        (added,) = [key for key, each in prompt.items() if each["class_type"] == kind]
        taken = {each["class_type"] for each in prompt.values() if [added, 0] in each["inputs"].values()}
        assert taken == set(types) - {"CheckpointLoaderSimple"}
    assert page.evaluate(MENU, [loader, "Make stock"]) == ["Make stock", "Make VAE stock"]
    assert page.evaluate(MENU, [page.evaluate(FIND, PARALLELIZE_VAE), "Make stock"]) == ["Make stock"]
    assert without_view(saved(page)) == without_view(before)


def test_the_canvas_offers_what_can_be_done(editor: Editor, page: Page) -> None:
    editor.open_alone(template("sdxl_simple_example"))
    ours = "Make this workflow parallel", "Make this workflow stock"
    assert [item for item in page.evaluate(OFFERED) if item in ours] == [*ours[:1]]
    execute(page, PARALLEL)
    expect(page.get_by_text("2 models made parallel")).to_be_visible()
    assert [item for item in page.evaluate(OFFERED) if item in ours] == [*ours[1:]]
    execute(page, STOCK)
    expect(page.get_by_text("Parallel nodes removed: 2.")).to_be_visible()


def test_a_subgraph_is_made_parallel_and_stock_by_its_menu(renderer: str, editor: Editor, page: Page) -> None:
    before = open_settled(editor, template("image_z_image_turbo"))
    (host,) = [node["id"] for node in before["nodes"] if node["type"] == before["definitions"]["subgraphs"][0]["id"]]
    assert page.evaluate(MENU, [host, "Make parallel"]) == ["Make parallel"]
    wait_for_node(editor, PARALLELIZE)
    assert list(inserted(before, saved(page))) == ["UNETLoader"]
    assert page.evaluate(MENU, [host, "Make stock"]) == ["Make stock"]
    wait_for_node(editor, PARALLELIZE, there=False)
    assert without_view(saved(page)) == without_view(before)
    assert types_of(before).count(PARALLELIZE) == 0
