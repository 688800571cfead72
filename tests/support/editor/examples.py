"""The workflows in example_workflows/, opened in the editor as its template browser opens them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from demo.host import PACK_NAME, REPOSITORY
from tests.support.editor.editor import Editor

FOLDER = REPOSITORY / "example_workflows"
EXAMPLES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))
OPEN = """async (path) => {
    const workflow = await (await fetch(path)).json()
    await window.app.loadGraphData(workflow, true, true)
}"""
FRAMES = """async () => {
    for (let frame = 0; frame < 5; frame++) await new Promise(requestAnimationFrame)
}"""
NOTES = """() => window.app.graph.nodes.filter((node) => node.type === 'MarkdownNote').map((node) => ({
    title: node.title, text: node.widgets[0].value, isTranslated: 'paralleldit_translated' in node.properties }))"""
BOXES = "() => window.app.graph.nodes.map((node) => [node.title, ...node.getBounding()])"
# The editor may not ask, under a host without API nodes, how large the downloads are that it offers; and a host without
# all of ComfyUI's templates package lacks their list.
USUAL = ("Content Security Policy", "Fetch API cannot load", "/templates/", "workflow templates", "fuse options")
Box = tuple[str, float, float, float, float]


def open_example(editor: Editor, name: str) -> None:
    """Opens one from where the host serves it."""
    editor.page.evaluate(OPEN, f"/api/workflow_templates/{PACK_NAME}/{name}.json")
    settle(editor)


def settle(editor: Editor) -> None:
    """Lets the editor lay out what has changed."""
    editor.page.evaluate(FRAMES)


def demo() -> dict[str, Any]:
    """The demo's workflow, with an automatic plan and degrees of one."""
    workflow = json.loads((FOLDER / "demo.json").read_text())
    (node,) = [node for node in workflow["nodes"] if node["type"] == "ParallelDiT_Parallelize"]
    assert node["widgets_values"][:3] == ["manual", 1, 2]
    node["widgets_values"][:3] = ["auto", 1, 1]
    return workflow


def open_demo(editor: Editor, plan: Mapping[str, Any] | None = None, **sampler: int) -> None:
    """Opens the demo with these widgets of Parallelize Model and of the sampler: another seed makes a new prompt. Its
    plan is automatic by default."""
    editor.open(demo())
    asked = dict(plan or {})
    if asked.get("mode") == "manual":
        asked |= {"cfg": asked.get("cfg", 1)}  # the switch to manual takes auto's
    editor.set_widgets("ParallelDiT_Parallelize", **asked)
    editor.set_widgets("KSampler", **sampler)


def boxes(editor: Editor) -> list[Box]:
    """The nodes of the open workflow: title, left, top, width and height with the title bar, as the editor has them."""
    return [tuple(box) for box in editor.page.evaluate(BOXES)]


def problems(editor: Editor) -> list[str]:
    """The editor's problems that are none of its usual ones."""
    return [problem for problem in editor.problems if not any(usual in problem for usual in USUAL)]
