"""Workflows that the editor makes parallel and stock again."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Page

from tests.support.editor.editor import PARALLELIZE

PARALLEL, STOCK = "ParallelDiT.MakeWorkflowParallel", "ParallelDiT.MakeWorkflowStock"
PARALLELIZE_VAE = "ParallelDiT_ParallelizeVAE"
# The saved workflow, once some frames have left it as it is: what is drawn as a web page tells its height late.
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
ORIGIN = slice(1, 3)
Json = dict[str, Any]


def saved(page: Page) -> Json:
    """The open workflow as the editor saves it."""
    return page.evaluate(SETTLED)


def execute(page: Page, command: str) -> None:
    page.evaluate(EXECUTE, command)


def graphs_of(workflow: Json) -> list[Json]:
    """A saved workflow's own graph and its subgraphs."""
    return [workflow, *workflow.get("definitions", {}).get("subgraphs", [])]


def without_view(workflow: Json) -> Json:
    """A workflow without where the editor looks at."""
    kept = copy.deepcopy(workflow)
    kept.get("extra", {}).pop("ds", None)
    return kept


def types_of(workflow: Json) -> list[str]:
    return [node["type"] for graph in graphs_of(workflow) for node in graph["nodes"]]


def links_of(graph: Json) -> dict[int, list[Any]]:
    """By id: origin, its slot, target, its slot, of either of the editor's two notations."""
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
    links = [link if isinstance(link, list) else [link[name] for name in names] for link in graph["links"]]
    return {link[0]: link[:5] for link in links}


def wrong_outputs(graph: Json) -> list[tuple[int, int]]:
    """The outputs that say other links than there are, as [node, slot]."""
    links: dict[tuple[int, int], set[int]] = {}
    for number, (_, *start, _, _) in links_of(graph).items():
        links.setdefault((start[0], start[1]), set()).add(number)
    outputs = {
        (node["id"], slot): each for node in graph["nodes"] for slot, each in enumerate(node.get("outputs") or ())
    }
    return sorted(at for at, each in outputs.items() if set(each["links"] or ()) != links.get(at, set()))


def kept(node: Json) -> Json:
    """What a new node may not change of another."""
    return {**node, "order": None, "outputs": [{**each, "links": None} for each in node.get("outputs") or ()]}


def inserted(before: Json, after: Json) -> Iterator[str]:
    """The types of the nodes behind which a new one stands. All links of that output start at it, all else stays."""
    for old, new in zip(graphs_of(before), graphs_of(after), strict=True):
        were, now = links_of(old), links_of(new)
        nodes = {node["id"]: node for node in old["nodes"]}
        assert [kept(node) for node in new["nodes"] if node["id"] in nodes] == [kept(node) for node in old["nodes"]]
        assert [old["groups"], without_view(old)["extra"]] == [new["groups"], without_view(new)["extra"]]
        assert wrong_outputs(new) == wrong_outputs(old)  # some of ComfyUI's own workflows have such
        moved: dict[int, list[Any]] = {}
        for node in new["nodes"]:
            if node["id"] in nodes:
                continue
            assert node["type"] == PARALLELIZE
            (into,) = [link for link in now.values() if link[3] == node["id"]]
            assert [link for link in now.values() if link[ORIGIN] == into[ORIGIN]] == [into]
            moved |= {into[0]: into} | {
                number: [number, node["id"], 0, *link[3:]]
                for number, link in were.items()
                if link[ORIGIN] == into[ORIGIN]
            }
            yield nodes[into[1]]["type"]
        assert now == were | moved
