"""A workflow that ComfyUI ships, as one flat graph of the nodes that run: its subgraphs opened, its switches set.

What ComfyUI's editor does with "Unpack Subgraph", and what a run would do with switches, primitives and sums, done to
the file; so that a template shows each node that it runs, and no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simpleeval import simple_eval

from tests.support.templates.workflows import OFF

INPUTS, OUTPUTS = -10, -20  # of a subgraph, as the ends of its links
MUTED, BYPASSED = OFF
NOTES = ("Note", "MarkdownNote")
SAVES = "Save"  # how the types of nodes begin that a workflow is run for
CONTROLS = ("fixed", "increment", "decrement", "randomize")  # the editor saves one behind a seed
PRIMITIVES = ("PrimitiveInt", "PrimitiveFloat", "PrimitiveBoolean", "PrimitiveStringMultiline", "PrimitiveNode")
# Which input a node hands through: of a switch as its own input says, of the others always.
HANDS_THROUGH = {"Reroute": "", "PreviewAny": "source"}
SWITCH = {True: "on_true", False: "on_false"}
SUM = "ComfyMathExpression"
# Widgets of nodes whose saved inputs do not name all of them.
SIZE = ("width", "height", "batch_size")
VIDEO = ("width", "height", "length", "batch_size")
WIDGETS = {
    "CLIPTextEncode": ("text",),
    "CreateVideo": ("fps", "bit_depth"),
    "EmptyFlux2LatentImage": SIZE,
    "EmptyHunyuanLatentVideo": VIDEO,
    "EmptyLatentImage": SIZE,
    "EmptyLTXVLatentVideo": VIDEO,
    "EmptySD3LatentImage": SIZE,
    "LoadImage": ("image", "upload"),
    "LTXVEmptyLatentAudio": ("frames_number", "frame_rate", "batch_size"),
    "Flux2Scheduler": ("steps", "width", "height"),
    "KSampler": ("seed", "steps", "cfg", "sampler_name", "scheduler", "denoise"),
    "KSamplerAdvanced": (
        *("add_noise", "noise_seed", "steps", "cfg", "sampler_name", "scheduler", "start_at_step", "end_at_step"),
        "return_with_leftover_noise",
    ),
}


class Output(NamedTuple):
    """Of a node, by its place."""

    node: str
    slot: int


@dataclass
class Node:
    """saved: as the file has it. linked: by input, what it comes from."""

    saved: dict[str, Any]
    linked: dict[str, Output] = field(default_factory=dict)

    @property
    def type(self) -> str:
        return self.saved["type"]

    @property
    def widgets(self) -> list[str]:
        """Names, in the order of their values."""
        named = tuple(each["name"] for each in self.saved.get("inputs", ()) if "widget" in each)
        return list(WIDGETS.get(self.type, named))

    def place(self, widget: str) -> int:
        """Of a widget's value. Raises KeyError where it has none, or its place is not known."""
        values, places = self.saved["widgets_values"], {}
        place = 0
        for name in self.widgets:
            places[name] = place
            place += 1 + (place + 1 < len(values) and values[place + 1] in CONTROLS)
        if place < len(values):
            raise KeyError(f"{self.type} has {len(values)} values for {self.widgets}")
        return places[widget]

    def value(self, widget: str) -> Any:
        return self.saved["widgets_values"][self.place(widget)]


Graph = dict[str, Node]


def opened(workflow: Mapping[str, Any]) -> Graph:
    """Its nodes, by names of their own, subgraphs replaced by what is in them; notes left out."""
    subgraphs = {each["id"]: each for each in workflow.get("definitions", {}).get("subgraphs", ())}
    graph: Graph = {}

    def add(part: Mapping[str, Any], prefix: str, given: Mapping[int, Output]) -> dict[int, Output]:
        """The nodes of a graph or a subgraph. given: what comes to its inputs. Returns what comes to its outputs."""
        nodes = {each["id"]: each for each in part["nodes"] if each["type"] not in NOTES}
        links = [as_link(each) for each in part["links"]]
        found: dict[tuple[int, int], Output] = {}
        inner = {name for name, each in nodes.items() if each["type"] in subgraphs}

        def origin(node: int, slot: int) -> Output | None:
            if node == INPUTS:
                return given.get(slot)
            if node not in inner:
                return Output(f"{prefix}{node}", slot)
            if (node, slot) not in found:
                enter(node)
            return found.get((node, slot))

        def enter(name: int) -> None:
            definition = subgraphs[nodes[name]["type"]]
            places = {each["name"]: place for place, each in enumerate(definition["inputs"])}
            coming = {}
            for link in links:
                if link.target == name and (came := origin(link.origin, link.origin_slot)):
                    coming[places[nodes[name]["inputs"][link.target_slot]["name"]]] = came
            for slot, out in add(definition, f"{prefix}{name}:", coming).items():
                found[name, slot] = out

        for name, saved in nodes.items():
            if name not in inner:
                graph[f"{prefix}{name}"] = Node(saved)
        leaving = {}
        for link in links:
            came = origin(link.origin, link.origin_slot) if link.target not in inner else None
            if came and link.target == OUTPUTS:
                leaving[link.target_slot] = came
            elif came and link.target in nodes:
                target = nodes[link.target]["inputs"][link.target_slot]["name"]
                graph[f"{prefix}{link.target}"].linked[target] = came
        return leaving

    add(workflow, "", {})
    return graph


class Link(NamedTuple):
    origin: int
    origin_slot: int
    target: int
    target_slot: int


def as_link(saved: Any) -> Link:
    """Of either of the editor's two notations."""
    if isinstance(saved, dict):
        return Link(saved["origin_id"], saved["origin_slot"], saved["target_id"], saved["target_slot"])
    return Link(*saved[1:5])


def settled(graph: Graph, values: Mapping[str, Any], links: Mapping[str, str | None]) -> Graph:
    """Without switches, primitives and sums: what they give is linked, or is the value of the widget that it goes to.

    values: of widgets, by "node.widget"; or of what a node's output gives, by "node/slot". links: by "node.input", what
    it is linked to in place of what the file says, as "node/slot", or None.
    """
    fixed: dict[Output, Any] = {}
    for name, value in values.items():
        node, _, widget = name.partition(".")
        if widget:
            graph[node].saved["widgets_values"][graph[node].place(widget)] = value
        else:
            fixed[output(name)] = value
    for name, origin in links.items():
        node, _, socket = name.partition(".")
        graph[node].linked.pop(socket, None)
        if origin:
            graph[node].linked[socket] = output(origin)
    for node in graph.values():
        node.linked = {name: resolve(graph, came) for name, came in node.linked.items()}
    for node in needed(graph).values():
        for name, came in list(node.linked.items()):
            if node.type != SUM and (value := constant(graph, came, fixed)) is not None:
                node.saved["widgets_values"][node.place(name)] = value
                del node.linked[name]
    return needed(graph)


def output(name: str) -> Output:
    node, _, slot = name.partition("/")
    return Output(node, int(slot))


def resolve(graph: Graph, came: Output) -> Output:
    """What an output is once switches are set and bypassed nodes hand through."""
    node = graph[came.node]
    handed = handed_through(graph, node, came.slot)
    return resolve(graph, node.linked[handed]) if handed is not None and handed in node.linked else came


def handed_through(graph: Graph, node: Node, slot: int) -> str | None:
    """The input that comes out of this output; None for a node that makes what comes out."""
    if node.saved.get("mode") == BYPASSED:
        kind = node.saved["outputs"][slot]["type"]
        return next((each["name"] for each in node.saved["inputs"] if each["type"] == kind), None)
    if node.type == "ComfySwitchNode":
        chosen = constant(graph, node.linked["switch"], {}) if "switch" in node.linked else node.value("switch")
        return SWITCH[bool(chosen)]
    return HANDS_THROUGH.get(node.type)


def constant(graph: Graph, came: Output, fixed: Mapping[Output, Any]) -> Any:
    """The value of an output that no run can change; None for any other."""
    if came in fixed:
        return fixed[came]
    node = graph[came.node]
    if node.type in PRIMITIVES:
        return node.saved["widgets_values"][0]
    if node.type != SUM:
        return None
    numbers = {
        name.rpartition(".")[2]: constant(graph, resolve(graph, each), fixed) for name, each in node.linked.items()
    }
    if None in numbers.values():
        return None
    kinds: tuple[Callable[[Any], Any], ...] = (float, int, bool)
    sum_of = simple_eval(node.saved["widgets_values"][0], names=numbers, functions={"floor": math.floor})
    return kinds[came.slot](sum_of)


def needed(graph: Graph) -> Graph:
    """The nodes without which something that is saved would be another."""
    kept: set[str] = set()
    waiting = [name for name, node in graph.items() if node.type.startswith(SAVES)]
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept.add(name)
            waiting += [came.node for came in graph[name].linked.values()]
    return {name: node for name, node in graph.items() if name in kept}
