"""Small graphs of the kinds that people share: loaders of other packs, which are missing here, and what old files have.

In `GRAPHS`, each has the nodes that make a model which is then made parallel, by type; and what the editor says of
others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
ENDS = "positive:CONDITIONING negative:CONDITIONING latent_image:LATENT"
SAMPLING = [1, "fixed", 20, 7.0, "euler", "normal", 1.0]
CHECKPOINT = "MODEL CLIP VAE"


@dataclass(frozen=True)
class Shared:
    workflow: Json
    made: tuple[str, ...]
    said: str = ""


def node(number: int, kind: str, inputs: str = "", outputs: str = "", values: Any = (), **more: Any) -> Json:
    """inputs: name:TYPE of each; outputs: their types."""
    taken = [each.split(":") for each in inputs.split()]
    return {
        **{"id": number, "type": kind, "pos": [400 * (number % 5), 300 * (number // 5)], "size": [300, 180]},
        **{"flags": {}, "order": number, "mode": 0, "properties": {"Node name for S&R": kind}},
        "inputs": [{"name": name, "type": of, "link": None} for name, of in taken],
        "outputs": [{"name": of, "type": of, "links": None} for of in outputs.split()],
        "widgets_values": list(values) if isinstance(values, tuple) else values,
        **more,
    }


def sampler(number: int, kind: str = "KSampler", **more: Any) -> Json:
    return node(number, kind, f"model:MODEL {ENDS}", "LATENT", SAMPLING, **more)


def graph(*nodes: Json, links: str, version: float = 0.4, **more: Any) -> Json:
    """links: from.slot>to.slot of each."""
    by_id, made = {each["id"]: each for each in nodes}, []
    for number, link in enumerate(links.split(), 1):
        (origin, slot), (target, place) = (map(int, end.split(".")) for end in link.split(">"))
        output = by_id[origin]["outputs"][slot]
        output["links"] = [*(output["links"] or []), number]
        by_id[target]["inputs"][place]["link"] = number
        made.append([number, origin, slot, target, place, output["type"]])
    last = {"last_node_id": max(by_id), "last_link_id": len(made)}
    return {**last, "nodes": list(nodes), "links": made, "groups": [], "config": {}, "version": version, **more}


def line(kind: str, outputs: str = "MODEL", values: Any = (), **more: Any) -> Json:
    """A loader with a sampler behind the first MODEL."""
    slot = outputs.split().index("MODEL")
    return graph(node(1, kind, "", outputs, values, **more), sampler(2), links=f"1.{slot}>2.0")


def old_file() -> Json:
    found = line("CheckpointLoaderSimple", CHECKPOINT, ["a.safetensors", None], size={"0": 315, "1": 98})
    found["nodes"][0]["inputs"] = None
    found["nodes"][1].update(size={"0": 315, "1": 262}, widgets_values=[None, *SAMPLING[1:]], properties=None)
    return found


def native_reroutes() -> Json:
    found = graph(node(1, "UNETLoader", "", "MODEL", ("a", "default")), sampler(2), sampler(3), links="1.0>2.0 1.0>3.0")
    reroutes = [
        {"id": 1, "pos": [700, 50], "linkIds": [1, 2]},
        {"id": 2, "parentId": 1, "pos": [800, 60], "linkIds": [2]},
    ]
    extensions = [{"id": 1, "parentId": 1}, {"id": 2, "parentId": 2}]
    return {**found, "extra": {"reroutes": reroutes, "linkExtensions": extensions}}


def subgraph() -> Json:
    """A loader in a subgraph, which is in another one that shows its file; a sampler takes the model outside."""
    name = "5b0c6c43-3d5d-4a8b-8f7e-0000000000{}".format

    def inner(number: int, inside: Json) -> Json:
        link = {"id": number, "origin_id": inside["id"], "origin_slot": 0, "target_id": -20, "target_slot": 0}
        inside["outputs"][0]["links"] = [number]
        boxes = {f"{end}putNode": {"id": at, "bounding": [0, 0, 120, 60]} for end, at in (("in", -10), ("out", -20))}
        out = {"id": name(number + 1), "name": "MODEL", "type": "MODEL", "linkIds": [number], "pos": [0, 0]}
        state = {"lastGroupId": 0, "lastNodeId": 40, "lastLinkId": 40, "lastRerouteId": 0}
        return {
            **{"id": name(number), "version": 1, "state": state, "revision": 0, "config": {}, "name": "loading"},
            **{**boxes, "inputs": [], "outputs": [out], "widgets": [], "nodes": [inside], "groups": []},
            **{"links": [{**link, "type": "MODEL"}], "extra": {}},
        }

    loader = node(31, "UNETLoader", "", "MODEL", ("a", "default"))
    host = node(21, name(30), "", "MODEL", properties={"proxyWidgets": [["31", "unet_name"]]})
    found = graph(node(1, name(20), "", "MODEL", properties={}), sampler(2), links="1.0>2.0")
    return {**found, "definitions": {"subgraphs": [inner(20, host), inner(30, loader)]}}


def grouped(kind: str) -> Json:
    """An old group node with a loader of this type and the text encoder."""
    loader = {**node(-1, kind, "", CHECKPOINT, ("a.safetensors",)), "index": 0}
    text = {**node(-1, "CLIPTextEncode", "clip:CLIP", "CONDITIONING", ("a cat",)), "index": 1}
    inside = {"nodes": [loader, text], "links": [[0, 1, 1, 0, 1, "CLIP"]], "external": []}
    outputs = "MODEL VAE CONDITIONING" if kind == "CheckpointLoaderSimple" else "VAE CONDITIONING"
    name = f"loading by {kind}"  # a page keeps the types of the group nodes that it has opened
    group = node(1, f"workflow/{name}", "", outputs, ("a.safetensors", "a cat"))
    links = "1.0>2.0 1.2>2.1" if "MODEL" in outputs else "1.1>2.1"
    return {**graph(group, sampler(2), links=links), "extra": {"groupNodes": {name: inside}}}


STOCK = ("CheckpointLoaderSimple",)
PIPED = graph(
    node(1, "easy fullLoader", "", "PIPE_LINE MODEL VAE"),
    node(2, "easy preSampling", "pipe:PIPE_LINE", "PIPE_LINE"),
    links="1.0>2.0",
)
KJNODES = line("DiffusionModelLoaderKJ", "MODEL", ("a", "default", "default", False, "disabled", False))
# tests/web/convert.test.mjs has more: other packs' loaders, Set and Get, primitives, names that other nodes take.
GRAPHS: dict[str, Shared] = {
    "KJNodes": Shared(KJNODES, ("DiffusionModelLoaderKJ",)),
    "a pipe": Shared(PIPED, (), "Its model is inside of a pipe."),
    "sizes and nulls": Shared(old_file(), STOCK),
    "reroutes": Shared(native_reroutes(), ("UNETLoader",)),
    "a subgraph in another": Shared(subgraph(), ("UNETLoader",)),
    "a group node": Shared(grouped("CheckpointLoaderSimple"), STOCK),
    "a group node that lacks nodes": Shared(grouped("CheckpointLoaderOfAPack"), (), "This group node lacks nodes"),
}
# A prompt in API format, as it is dropped into the editor.
PROMPT: Json = {
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
    "5": {"class_type": "LoraLoaderModelOnly", "inputs": {"model": ["4", 0], "lora_name": "l", "strength_model": 1.0}},
    "3": {"class_type": "KSampler", "inputs": {"model": ["5", 0], "seed": 1, "steps": 20, "cfg": 7.0}},
}
