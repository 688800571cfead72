"""Where the nodes of an example workflow stand: in columns, by what they wait for, the notes below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from tests.support.templates.stock_graph import CONTROLS, Graph, Node

LEFT, TOP = 20, 60
GAP = 40
ABOVE = 60  # a node's title, and the name of its pack
IN_A_ROW = 8
WIDTH = 230
PARALLELIZE = "ParallelDiT_Parallelize"
WIDE = ("Load", "TextEncode", "Save", PARALLELIZE)  # parts of types
WIDTHS = {WIDE: 330, ("KSampler",): 270, ("Decode",): 180}
ROW, WIDGET, MARGIN = 20, 26, 16
HEIGHTS = {
    "CLIPTextEncode": 170,
    "LoadImage": 340,
    PARALLELIZE: 420,
    "TextEncodeQwenImageEditPlus": 240,
}
SAVED = 330
NOTE_WIDTH, NOTE_LINE, NOTE_LETTER = 700, 21, 6.0


class Box(NamedTuple):
    left: int
    top: int
    width: int
    height: int


def size_of(node: Node) -> tuple[int, int]:
    kind = node.type
    width = next((width for parts, width in WIDTHS.items() if any(part in kind for part in parts)), WIDTH)
    if kind.startswith("Save"):
        return width, SAVED
    sockets = [each for each in node.saved.get("inputs", ()) if "widget" not in each]
    widgets = [value for value in node.saved["widgets_values"] if value not in CONTROLS]
    rows = max(len(sockets), len(node.saved["outputs"]))
    return width, HEIGHTS.get(kind, MARGIN + ROW * rows + WIDGET * (len(widgets) + 1))


def boxes(graph: Graph) -> Mapping[str, Box]:
    """The nodes': a node stands behind what is linked to it, and what makes something from nothing right before what
    takes it, but for loaders; after so many columns there is another row of them. Parallelize Model is below the others
    of its column, as it grows by its answer."""
    column = columns(graph)
    found: dict[str, Box] = {}
    left, start = LEFT, TOP
    for place in range(max(column.values()) + 1):
        if place and place % IN_A_ROW == 0:
            left, start = LEFT, max(box.top + box.height for box in found.values()) + 2 * ABOVE
        names = [name for name in graph if column[name] == place]
        names.sort(key=lambda name: mean([found[came.node].top for came in graph[name].linked.values()] or [1e9]))
        names.sort(key=lambda name: graph[name].type == PARALLELIZE)
        top, widest = start, 0
        for name in names:
            width, height = size_of(graph[name])
            found[name] = Box(left, top, width, height)
            top, widest = top + height + ABOVE, max(widest, width)
        left += widest + GAP
    return found


def columns(graph: Graph) -> Mapping[str, int]:
    depths: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in depths:
            before = [depth(came.node) for came in graph[name].linked.values()]
            depths[name] = max(before, default=-1) + 1
        return depths[name]

    for name in graph:
        depth(name)
    after: dict[str, list[int]] = {name: [] for name in graph}
    for name, node in graph.items():
        for came in node.linked.values():
            after[came.node].append(depths[name])
    for name, node in graph.items():
        if not node.linked and after[name] and "Load" not in node.type:
            depths[name] = min(after[name]) - 1
    return depths


def note_box(graph: Mapping[str, Box], texts: Sequence[str]) -> Box:
    """Of a note that has room for each of these texts, below the nodes."""
    left = LEFT
    right = max(box.left + box.width for box in graph.values())
    top = max(box.top + box.height for box in graph.values())
    width = max(NOTE_WIDTH, (right - left - GAP) // 2)
    return Box(left, top + ABOVE, width, max(note_height(text, width) for text in texts))


def note_height(text: str, width: int) -> int:
    """Enough for a text of Markdown; a Chinese character is as wide as two letters."""
    letters = width / NOTE_LETTER
    widths = [sum(1 + (ord(each) > 0x2E80) for each in shown(line)) for line in text.split("\n")]
    return round(NOTE_LINE * sum(math.ceil(each / letters) or 0.4 for each in widths)) + ABOVE


def shown(line: str) -> str:
    """What of a line of Markdown is seen: of links the name."""
    before, found, rest = line.partition("](")
    return before + rest.partition(")")[2] if found else line
