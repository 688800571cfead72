"""Stock's loaders become parallel and stock again: by the menus, in subgraphs too, in one step to undo; the workflows
that ComfyUI ships come back as they were."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from demo.host import ComfyHost
from tests.support.editor.editor import Editor, insist, wait_for
from tests.support.editor.groups import Event, event, run, tell
from tests.support.templates.workflows import LOADERS, RELEASE, release, templates_folder, workflows

FOLDER = templates_folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="needs ComfyUI's templates package")
UNET, CHECKPOINT = "ParallelDiT_LoadDiffusionModel", "ParallelDiT_LoadCheckpoint"
PARALLEL, STOCK = "ParallelDiT.MakeWorkflowParallel", "ParallelDiT.MakeWorkflowStock"
# A checkpoint; two of them with titles; loaders in a subgraph that shows their files; CLIP vision of a checkpoint.
QUICK = (
    *("default", "sdxl_simple_example", "03_video_wan2_2_14B_i2v_subgraphed", "04_hunyuan_3d_2.1_subgraphed"),
    *("image_flux2_text_to_image_9b",),
)
SERIALIZED = "() => JSON.parse(JSON.stringify(window.app.rootGraph.serialize()))"
# The same, once some frames have left it as it is: what is drawn as a web page tells its height late.
SETTLED = """async () => {
    const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 50)))
    let [now, still] = ['', 0]
    while (still < 3) {
        await frame()
        const next = JSON.stringify(window.app.rootGraph.serialize())
        still = next === now ? still + 1 : 0
        now = next
    }
    return JSON.parse(now)
}"""
EXECUTE = "(id) => window.app.extensionManager.command.execute(id)"
HAS_TYPE = "(type) => window.app.rootGraph.nodes.some((node) => node.type === type)"
PROMPT_OF = """async (type) => Object.values((await window.app.graphToPrompt()).output)
    .find((node) => node.class_type === type).inputs"""
UNDO_STEPS = "() => window.app.extensionManager.workflow.activeWorkflow.changeTracker.undoQueue.length"
# Of the loaders of diffusion models in all graphs: what stays, and what a link leads to.
LOADED = """(types) => [window.app.rootGraph, ...window.app.rootGraph.subgraphs.values()].flatMap((graph) =>
    graph.nodes.filter((node) => types.includes(node.type)).map((node) => {
        const targets = node.outputs.flatMap((output) => (output.links ?? []).map((id) => {
            const link = graph.getLink(id)
            return [output.type, String(link.target_id), link.target_slot]
        }))
        const { mode, color = null, pos } = node
        const origins = node.inputs.filter((input) => input.link != null && input.widget)
            .map((input) => [String(graph.getLink(input.link).origin_id), graph.getLink(input.link).origin_slot])
        const title = node.title === node.constructor.title ? null : node.title
        return { id: String(node.id), file: node.widgets[0].value, title, mode, color, pos: [...pos],
            targets: targets.sort(), origins }
    }))"""
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
# Of the first loader in the first graph that has one, in the page's pixels: its box, that of what we say on it, and
# whether that covers another node.
LOADER_BOXES = """async (types) => {
    const { canvas } = window.app
    const graphs = [window.app.rootGraph, ...window.app.rootGraph.subgraphs.values()]
    const isLoader = (node) => types.includes(node.type)
    const graph = graphs.find(({ nodes }) => nodes.some(isLoader))
    if (canvas.graph !== graph) canvas.setGraph(graph)
    const nodes = graph.nodes.filter(isLoader).slice(0, 1) // a template's loaders are alike
    const isVue = window.LiteGraph.vueNodesMode
    const onCanvas = (node) => {
        const [x, y, width, height] = node.getBounding()
        const [left, top] = window.app.canvasPosToClientPos([x, y])
        return new DOMRect(left, top, width * canvas.ds.scale, height * canvas.ds.scale)
    }
    const box = (node) => isVue
        ? document.querySelector(`[data-node-id="${node.id}"]`)?.getBoundingClientRect() : onCanvas(node)
    const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 50)))
    const found = []
    for (const node of nodes) {
        canvas.ds.scale = 1
        canvas.centerOnNode(node)
        canvas.setDirty(true, true)
        const line = () => node.widgets.find(({ name }) => name === 'mesh')?.element.querySelector('span')
        const isOurs = node.type.startsWith('ParallelDiT_')
        for (let n = 0; n < 60 && !(box(node) && (!isOurs || line()?.getBoundingClientRect().width)); n++) await frame()
        for (let n = 0; n < 2; n++) await frame()
        const [own, said] = [box(node), isOurs ? line()?.getBoundingClientRect() : null]
        const covers = said && graph.nodes.some((other) => {
            const there = other === node ? null : box(other)
            return there && said.left < there.right && there.left < said.right
                && said.top < there.bottom && there.top < said.bottom
        })
        const { scale } = canvas.ds
        found.push({ box: [own.width / scale, own.height / scale], covers, text: line?.()?.textContent,
            said: said && [said.left - own.left, said.top - own.top, own.right - said.right, own.bottom - said.bottom]
        })
    }
    return found
}"""
PLAN_ROUTE = "**/paralleldit/plan"
LONGEST = "16 GPUs · cfg=2 × ring=2 × ulysses=4 · 3.1× faster"
# The gate has one of each loader.
LAID_OUT = (
    ("flux_dev_full_text_to_image", "sdxl_simple_example"),
    pytest.param(("image_z_image_turbo", "video_wan2_2_14B_t2v"), marks=pytest.mark.slow),
)

# The first subgraph's node: its id, and what its menu offers of ours. With an item's name: chooses it.
SUBGRAPH_MENU = """(choice) => {
    const { canvas, rootGraph } = window.app
    canvas.setGraph(rootGraph)
    const host = rootGraph.nodes.find((node) => node.subgraph)
    const items = canvas.getNodeMenuOptions(host).filter((item) => /^Make /.test(item?.content))
    items.find(({ content }) => content === choice)?.callback()
    return [String(host.id), items.map(({ content }) => content)]
}"""
# The badge of ours above a subgraph's node, as either of the editor's ways to draw nodes shows it.
BADGE = """(id) => {
    if (window.LiteGraph.vueNodesMode) {
        const target = document.querySelector(`.lg-node[data-node-id="${id}"]`)
        return target && getComputedStyle(target, '::after').content.replace(/^"|"$/g, '')
    }
    const badges = window.app.rootGraph.getNodeById(id).badges.map((badge) => badge.text ?? badge().text)
    return badges.at(-1)
}"""

# What a new node of this type offers in its menu.
NODE_MENU = """(type) => {
    const node = window.LiteGraph.createNode(type)
    window.app.graph.add(node)
    const items = window.app.canvas.getNodeMenuOptions(node).filter(Boolean)
    window.app.graph.remove(node)
    return items.map(({ content = '', disabled = false }) => ({ content, disabled }))
}"""


def template(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.json"
    if not path.is_file() and release() != RELEASE:
        pytest.skip(f"{release()} has no {name}")
    return json.loads(path.read_text())


def round_trip(editor: Editor, workflow: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The open workflow before, while it is parallel, and when it is stock again.

    Before is as the editor saves what it has saved: of older workflows it orders the nodes anew when it loads that.
    """
    page, states = editor.page, []
    editor.open(workflow)
    editor.open(page.evaluate(SETTLED))
    for command in (PARALLEL, STOCK, None):
        states.append((page.evaluate(SETTLED), page.evaluate(LOADED, [*LOADERS, UNET, CHECKPOINT])))
        if command:
            page.evaluate(EXECUTE, command)
    return tuple(states)


def without_view(workflow: dict[str, Any]) -> dict[str, Any]:
    """A workflow without where the editor looks at."""
    kept = copy.deepcopy(workflow)
    kept.get("extra", {}).pop("ds", None)
    return kept


def types_of(workflow: dict[str, Any]) -> list[str]:
    graphs = [workflow, *workflow.get("definitions", {}).get("subgraphs", [])]
    return [node["type"] for graph in graphs for node in graph["nodes"]]


def check_round_trip(editor: Editor, name: str) -> None:
    editor.problems.clear()
    (before, stock), (between, parallel), (after, again) = round_trip(editor, template(name))
    assert stock and not set(LOADERS) & set(types_of(between)), name
    assert {UNET, CHECKPOINT} & set(types_of(between)), name
    assert parallel == again == stock, f"{name}: file, title, place, mode and links"
    assert without_view(after) == without_view(before), name
    assert not [problem for problem in editor.problems if "uncaught" in problem or "paralleldit" in problem], name


@pytest.mark.parametrize("name", QUICK)
def test_a_workflow_of_comfyuis_becomes_parallel_and_is_the_same_again(name: str, shared_editor: Editor) -> None:
    check_round_trip(shared_editor, name)


@pytest.mark.slow
def test_every_workflow_of_comfyuis_becomes_parallel_and_is_the_same_again(shared_editor: Editor) -> None:
    wrong, names = [], [each.name for each in workflows() if has_loader(each.name)]
    assert len(names) > 200
    for name in names:
        try:
            check_round_trip(shared_editor, name)
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


def wait_for_loader(editor: Editor, kind: str) -> None:
    """Until there is a loader of this kind."""
    wait_for(editor.page, f"() => {{ const all = {LOADED}; return all(['{kind}']).length > 0 }}")


def test_a_loader_in_a_subgraph_becomes_parallel_by_its_menu_in_one_step_to_undo(shared_editor: Editor) -> None:
    page = shared_editor.page
    shared_editor.open(template("image_flux2_text_to_image_9b"))
    loader, *_ = page.evaluate(LOADED, ["UNETLoader"])
    page.evaluate(AT_NODE, loader["id"])
    before, steps = page.evaluate(SERIALIZED), page.evaluate(UNDO_STEPS)
    menu(shared_editor, loader["id"], "Make parallel")
    wait_for_loader(shared_editor, UNET)
    shared_editor.screenshot("convert-subgraph")
    assert page.evaluate(UNDO_STEPS) == steps + 1
    page.mouse.click(700, 830)  # on the empty canvas: what the editor notes then is no step more
    assert page.evaluate(UNDO_STEPS) == steps + 1
    page.keyboard.press("Control+z")
    wait_for_loader(shared_editor, "UNETLoader")
    assert page.evaluate(LOADED, [UNET]) == []
    assert without_view(page.evaluate(SERIALIZED)) == without_view(before)
    menu(shared_editor, loader["id"], "Make parallel")
    wait_for_loader(shared_editor, UNET)
    menu(shared_editor, loader["id"], "Make stock")
    wait_for_loader(shared_editor, "UNETLoader")
    assert without_view(page.evaluate(SERIALIZED)) == without_view(before)


def test_the_vaes_nodes_become_parallel_by_their_menu_and_keep_their_links(shared_editor: Editor) -> None:
    page = shared_editor.page
    shared_editor.open(template("default"))
    shared_editor.open(page.evaluate(SETTLED))
    before, links = page.evaluate(SETTLED), page.evaluate(PROMPT_OF, "VAEDecode")
    (node,) = [each["id"] for each in before["nodes"] if each["type"] == "VAEDecode"]
    menu(shared_editor, node, "Make parallel")
    wait_for(page, HAS_TYPE, arg="ParallelDiT_VAEDecode")
    inputs = page.evaluate(PROMPT_OF, "ParallelDiT_VAEDecode")
    assert {name: inputs[name] for name in links} == links and inputs["dtype"] == "auto"
    menu(shared_editor, node, "Make stock")
    wait_for(page, HAS_TYPE, arg="VAEDecode")
    assert without_view(page.evaluate(SETTLED)) == without_view(before)


def test_pickles_are_left_and_told_of_by_the_commands_that_the_canvas_offers(shared_editor: Editor) -> None:
    page = shared_editor.page
    workflow = template("sdxl_simple_example")
    first, *_ = [node for node in workflow["nodes"] if node["type"] == "CheckpointLoaderSimple"]
    first["widgets_values"] = ["old.ckpt"]
    shared_editor.open(workflow)
    offered = page.evaluate("() => window.app.canvas.getCanvasMenuOptions().map((item) => item?.content)")
    assert "Make this workflow parallel" in offered and "Make this workflow stock" not in offered
    page.evaluate(EXECUTE, PARALLEL)
    told = page.get_by_text("Not changed: old.ckpt. Loading a pickle file can run any code.")
    expect(told).to_be_visible()
    kinds = types_of(page.evaluate(SERIALIZED))
    assert kinds.count("CheckpointLoaderSimple") == 1 and kinds.count(CHECKPOINT) == 1
    shared_editor.screenshot("convert-pickle")


@pytest.mark.parametrize("kind", ["CheckpointLoader", "DiffusersLoader"])
def test_a_deprecated_loader_says_what_to_use_in_its_place(kind: str, shared_editor: Editor) -> None:
    offered = {each["content"]: each["disabled"] for each in shared_editor.page.evaluate(NODE_MENU, kind)}
    assert offered.get("Make parallel: not for this deprecated loader; use Load Checkpoint") is True, offered
    assert "Make parallel" not in offered


def test_the_library_shows_the_nodes_together_and_searching_finds_them(shared_editor: Editor, host: ComfyHost) -> None:
    page = shared_editor.page
    own = {name: node for name, node in host.object_info().items() if name.startswith("ParallelDiT_")}
    assert {node["category"] for node in own.values()} == {"ParallelDiT"}
    search = page.get_by_placeholder("Add a node")
    insist(lambda: page.mouse.dblclick(800, 500), lambda ms: search.wait_for(timeout=ms))
    for words, title in (
        ("load checkpoint", "Load Checkpoint (Parallel)"),
        ("multi gpu", "Load Diffusion Model (Parallel)"),
        ("load diffusion", "Load Diffusion Model (Parallel)"),
    ):
        search.fill(words)
        page.get_by_text(title, exact=True).first.wait_for()
    page.keyboard.press("Escape")


@pytest.fixture(params=["canvas", "vue"])
def renderer(request: pytest.FixtureRequest, shared_editor: Editor) -> Iterator[str]:
    """Each of the editor's ways to draw nodes."""
    setting = "(on) => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)"
    shared_editor.page.evaluate(setting, request.param == "vue")
    yield request.param
    shared_editor.page.evaluate(setting, False)


def plan_of_sixteen() -> dict[str, Any]:
    """The longest line that a loader shows: an answer of a machine with that many cards."""
    known = {"values": {}, "bytes": 0, "fits": True, "has_run": False}
    plans = {"plan": {"plan": "a", "seconds": 1, **known}, "one_device": {"plan": "b", "seconds": 3.1, **known}}
    nothing = {"ranks": [], "memory": None, "remarks": [], "note": [], "unknown": [], "error": "", "widgets": []}
    predicted = {**plans, "best": [], "alone": False, "is_measured": True}
    plan = "cfg=2 × ring=2 × ulysses=4"
    return {**nothing, "plan": plan, "world": 16, "device": "cuda", "predicted": predicted, "sized": True}


@pytest.mark.parametrize("names", LAID_OUT)
def test_a_loader_made_parallel_keeps_its_size_and_covers_no_other(
    names: tuple[str, ...], renderer: str, shared_editor: Editor
) -> None:
    page = shared_editor.page
    page.route(PLAN_ROUTE, lambda route: route.fulfill(json=plan_of_sixteen()))
    try:
        for name in names:
            shared_editor.open_alone(template(name))
            stock = page.evaluate(LOADER_BOXES, [*LOADERS])
            page.evaluate(EXECUTE, PARALLEL)
            parallel = page.evaluate(LOADER_BOXES, [UNET, CHECKPOINT])
            shared_editor.screenshot(f"loader-{name}-{renderer}")
            assert len(parallel) == len(stock) > 0
            for before, after in zip(stock, parallel, strict=True):
                width, height = (now - then for now, then in zip(after["box"], before["box"], strict=True))
                assert abs(width) <= 1 and height <= 1, (name, before, after)
                assert min(after["said"]) >= 0 and after["text"] == LONGEST and not after["covers"], (name, after)
    finally:
        page.unroute(PLAN_ROUTE)


def of_seven(*told: Any, **changes: Any) -> Event:
    """An event of a group that no other test has."""
    return {**event(*told, **changes), "group": 7}


def test_a_subgraph_is_made_parallel_by_its_menu_and_its_badge_says_the_plan_and_what_workers_do(
    renderer: str, shared_editor: Editor, host: ComfyHost
) -> None:
    page = shared_editor.page
    page.route(PLAN_ROUTE, lambda route: route.fulfill(json=plan_of_sixteen()))

    def shows(text: str) -> None:
        wait_for(page, f"([id, text]) => ({BADGE})(id) === text", arg=[outer, text])

    try:
        shared_editor.open_alone(template("image_z_image_turbo"))
        outer, items = page.evaluate(SUBGRAPH_MENU, "Make parallel")
        assert items == ["Make parallel"]
        wait_for_loader(shared_editor, UNET)
        shows(LONGEST)
        node = f"{outer}:{page.evaluate(LOADED, [UNET])[0]['id']}"
        tell(host, of_seven([run(1, 0, node=node)], 0, state="starting", starting=12.0))
        shows("Starting the workers, 12 s")
        shared_editor.screenshot(f"subgraph-{renderer}")
        tell(host, of_seven([run(1, 1, node=node)], state="busy", operation="call"))
        shows(LONGEST)
        assert page.evaluate(SUBGRAPH_MENU, "Make stock")[1] == ["Make stock"]
        wait_for_loader(shared_editor, "UNETLoader")
        wait_for(page, f"(id) => ['none', ''].includes(({BADGE})(id))", arg=outer)
    finally:
        page.unroute(PLAN_ROUTE)
        tell(host, of_seven([run(1, 20, node=None)], 0, state="stopped", model=None))
