"""Makes example_workflows/ anew, from ComfyUI's own templates and from what is written down beside this file.

python -m tests.support.templates.make [--previews FOLDER]

Each template of `examples.json` is ComfyUI's, opened and settled (`stock_graph`), with Parallelize Model behind each
loader of a model, and a note. Those without a base keep their graph and get their note. With --previews, the
folder of the pictures that ComfyUI ships with its templates, the thumbnails are made of them.
"""

from __future__ import annotations

import argparse
import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageSequence

from demo.host import REPOSITORY
from tests.support.templates.examples import HERE, TABLE, Example
from tests.support.templates.layout import PARALLELIZE, Box, boxes, note_box
from tests.support.templates.notes import EN, ZH, note
from tests.support.templates.stock_graph import NOTES, Graph, Node, Output, opened, settled
from tests.support.templates.two_cards import FILE
from tests.support.templates.workflows import templates_folder

FOLDER = REPOSITORY / "example_workflows"
NOTICE = FOLDER / "NOTICE.md"
PACK = "paralleldit"
TRANSLATED = "paralleldit_translated"  # a note's property, as `web/notes.mjs` reads it
LOADERS, MODEL = ("UNETLoader", "CheckpointLoaderSimple"), "MODEL"
THUMBNAIL, QUALITY = 512, 85  # pixels of the longer side


def make(name: str, example: Example, cards: Mapping[str, Any]) -> dict[str, Any]:
    """The workflow."""
    if not example.base:
        return with_note(json.loads((FOLDER / f"{name}.json").read_text()), example, cards)
    folder = templates_folder()
    assert folder, "ComfyUI's templates package is not installed."
    graph = opened(json.loads((folder / f"{example.base}.json").read_text()))
    graph = parallel(settled(renamed(graph, example), example.values, example.links))
    for node in graph.values():
        if node.type.startswith("Save"):
            start = "video/" if node.type == "SaveVideo" else ""
            node.saved["widgets_values"][0] = f"{start}ParallelDiT_{re.sub('_(text_to_.*|edit)$', '', name)}"
    places = boxes(graph)
    ids = {node: number for number, node in enumerate(in_turn(graph), start=1)}
    links: list[list[Any]] = []
    nodes = [as_saved(graph, each, places[each], ids, links) for each in ids]
    for node in nodes:
        for slot, output in enumerate(node["outputs"]):
            output["links"] = [link[0] for link in links if link[1:3] == [node["id"], slot]]
    made = {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PACK}/{name}")),
        "revision": 0,
        "last_node_id": len(nodes),
        "last_link_id": len(links),
        "nodes": nodes,
        "links": links,
        "groups": [],
        "config": {},
        "extra": {},
        "version": 0.4,
    }
    return with_note(made, example, cards)


def renamed(graph: Graph, example: Example) -> Graph:
    """With other files in place of some, and their downloads."""
    urls = {file.name: file for file in example.files}
    for node in graph.values():
        values = node.saved["widgets_values"] or []
        node.saved["widgets_values"] = [
            example.names.get(each, each) if isinstance(each, str) else each for each in values
        ]
        models = node.saved["properties"].get("models", [])
        chosen = {example.names.get(each["name"], each["name"]) for each in models}
        node.saved["properties"]["models"] = [
            {"name": file.name, "url": file.url, "directory": file.folder}
            for file in urls.values()
            if file.name in chosen
        ]
    return graph


def parallel(graph: Graph) -> Graph:
    """With Parallelize Model behind each loader of a model. It takes all links of the loader's MODEL."""
    found: Graph = {}
    moved: dict[Output, Output] = {}
    for name, node in graph.items():
        found[name] = node
        if node.type in LOADERS:
            slot = [each["type"] for each in node.saved["outputs"]].index(MODEL)
            behind = f"{name} parallel"
            sockets = {"inputs": [{"name": "model", "type": MODEL}], "outputs": [{"name": MODEL, "type": MODEL}]}
            saved = {"type": PARALLELIZE, **sockets, "widgets_values": ["auto"], "properties": {}}
            found[behind] = Node(saved, {"model": Output(name, slot)})
            moved[Output(name, slot)] = Output(behind, 0)
    for node in graph.values():
        node.linked = {socket: moved.get(came, came) for socket, came in node.linked.items()}
    return found


def in_turn(graph: Graph) -> list[str]:
    """In an order in which each node comes behind what it needs."""
    done: dict[str, None] = {}

    def add(name: str) -> None:
        for came in graph[name].linked.values():
            add(came.node)
        done.setdefault(name)

    for name in graph:
        add(name)
    return list(done)


def as_saved(graph: Graph, name: str, place: Box, ids: Mapping[str, int], links: list[list[Any]]) -> dict[str, Any]:
    """A node as the editor saves it; its links are added to all."""
    node, number = graph[name], ids[name]
    inputs = []
    for socket in node.saved.get("inputs", ()):
        came = node.linked.get(socket["name"])
        if came is None and "widget" in socket:
            continue
        inputs.append({"name": socket["name"], "type": socket["type"], "link": None})
        if came:
            kind = graph[came.node].saved["outputs"][came.slot]["type"]
            links.append([len(links) + 1, ids[came.node], came.slot, number, len(inputs) - 1, kind])
            inputs[-1]["link"] = len(links)
    title = node.saved.get("title")
    properties = {
        "Node name for S&R": node.type,
        "cnr_id": PACK if node.type.startswith("ParallelDiT_") else "comfy-core",
    }
    models = node.saved["properties"].get("models")
    return {
        "id": number,
        "type": node.type,
        "pos": [place.left, place.top],
        "size": [place.width, place.height],
        "flags": {},
        "order": number - 1,
        "mode": 0,
        "inputs": inputs,
        "outputs": [{"name": each["name"], "type": each["type"], "links": []} for each in node.saved["outputs"]],
        **({"title": title} if title else {}),
        "properties": properties | ({"models": models} if models else {}),
        "widgets_values": [
            round(each, 6) if isinstance(each, float) else each for each in node.saved["widgets_values"]
        ],
    }


def with_note(workflow: dict[str, Any], example: Example, cards: Mapping[str, Any]) -> dict[str, Any]:
    """With the note of this example, and no others. It is in English, and has the Chinese one for `web/notes.mjs`."""
    nodes = [node for node in workflow["nodes"] if node["type"] not in NOTES]
    english, chinese = (note(example, cards, phrases) for phrases in (EN, ZH))
    graph = {node["id"]: Box(*node["pos"], *node["size"]) for node in nodes}
    place = Box(*example.note) if example.note else note_box(graph, [english, chinese])
    number = max(node["id"] for node in nodes) + 1
    translated = {ZH.language: {"title": ZH.title, "text": chinese}}
    nodes.append(
        {
            "id": number,
            "type": "MarkdownNote",
            "pos": [place.left, place.top],
            "size": [place.width, place.height],
            "flags": {},
            "order": len(nodes),
            "mode": 0,
            "inputs": [],
            "outputs": [],
            "title": EN.title,
            "properties": {"Node name for S&R": "MarkdownNote", "cnr_id": "comfy-core", TRANSLATED: translated},
            "widgets_values": [english],
        }
    )
    return workflow | {"nodes": nodes, "last_node_id": number}


def text_of(workflow: Mapping[str, Any]) -> str:
    return json.dumps(workflow, indent=1, ensure_ascii=False) + "\n"


def thumbnail(previews: list[Path]) -> Image.Image:
    """The picture, or a frame from the middle of a moving one; of two, what is edited and what comes of it."""
    pictures = [ImageSequence.all_frames(Image.open(preview)) for preview in previews]
    shown = [frames[len(frames) // 2].convert("RGB") for frames in pictures]
    both = Image.new("RGB", (sum(each.width for each in shown), max(each.height for each in shown)))
    left = 0
    for each in shown:
        both.paste(each, (left, 0))
        left += each.width
    both.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return both


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--previews", type=Path, help="the folder of ComfyUI's own thumbnails")
    options = parser.parse_args()
    cards = json.loads(FILE.read_text())
    made = {f"{name}.jpg": example.base for name, example in TABLE.items() if example.base}
    NOTICE.write_text(
        (HERE / "notice.md").read_text().format(rows="\n".join(f"| {name} | {base} |" for name, base in made.items()))
    )
    for name, example in TABLE.items():
        (FOLDER / f"{name}.json").write_text(text_of(make(name, example, cards.get(name, {}))))
        if options.previews and example.base:
            found = sorted(options.previews.rglob(f"{example.base}-[12].webp"), reverse=True)
            thumbnail(found).save(FOLDER / f"{name}.jpg", quality=QUALITY, optimize=True)


if __name__ == "__main__":
    main()
