"""Graphs as people share them become parallel by one command, and then stock again as they were: loaders of other
packs, old files, group nodes, prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.editor.converted import PARALLEL, PARALLELIZE, STOCK, execute, graphs_of, saved, without_view
from tests.support.editor.editor import Editor
from tests.support.editor.shared_graphs import GRAPHS, PROMPT, Json

UNDO_STEPS = "() => window.app.extensionManager.workflow.activeWorkflow.changeTracker.undoQueue.length"
TOASTS = "() => document.querySelectorAll('.p-toast-close-button').forEach((button) => button.click())"
LOAD_PROMPT = "(prompt) => window.app.loadApiJson(prompt, 'prompt')"
ORIGIN = slice(1, 3)


def links_of(graph: Json) -> dict[int, list[Any]]:
    """By id: origin, its slot, target, its slot, of either of the editor's two notations."""
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
    links = [link if isinstance(link, list) else [link[name] for name in names] for link in graph["links"]]
    return {link[0]: link[:5] for link in links}


def kept(node: Json) -> Json:
    """What a new node may not change of another."""
    return {**node, "order": None, "outputs": [{**each, "links": None} for each in node.get("outputs") or ()]}


def inserted(before: Json, after: Json) -> Iterator[str]:
    """The types of the nodes behind which a new one stands. All links of that output start at it, all else stays."""
    for old, new in zip(graphs_of(before), graphs_of(after), strict=True):
        were, now = links_of(old), links_of(new)
        nodes = {node["id"]: node for node in old["nodes"]}
        assert [kept(node) for node in new["nodes"] if node["id"] in nodes] == [kept(node) for node in old["nodes"]]
        assert [old[part] for part in ("groups", "extra")] == [new[part] for part in ("groups", "extra")]
        moved: dict[int, list[Any]] = {}
        for node in new["nodes"]:
            for slot, output in enumerate(node.get("outputs") or ()):
                right = {number for number, link in now.items() if link[ORIGIN] == [node["id"], slot]}
                assert set(output["links"] or ()) == right, (node, "says other links than there are")
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


@pytest.mark.parametrize("name", GRAPHS)
def test_a_shared_graph_becomes_parallel_in_one_step_and_is_the_same_again(name: str, shared_editor: Editor) -> None:
    page, shared = shared_editor.page, GRAPHS[name]
    shared_editor.open_alone(shared.workflow)
    shared_editor.open_alone(saved(page))  # what the editor itself changes as it opens and saves
    before, steps = saved(page), page.evaluate(UNDO_STEPS)
    page.evaluate(TOASTS)
    execute(page, PARALLEL)
    if shared.said:
        expect(page.get_by_text(shared.said)).to_be_visible()
    between = saved(page)
    assert sorted(inserted(before, between)) == sorted(shared.made)
    assert page.evaluate(UNDO_STEPS) == steps + bool(shared.made)
    execute(page, PARALLEL)
    assert saved(page) == between, "a second one stands there"
    shared_editor.open_alone(between)
    assert without_view(saved(page)) == without_view(between), "the saved file is another"
    execute(page, STOCK)
    assert without_view(saved(page)) == without_view(before)


def test_a_prompt_that_is_dropped_into_the_editor_becomes_parallel(shared_editor: Editor) -> None:
    page = shared_editor.page
    page.evaluate(LOAD_PROMPT, PROMPT)
    before = saved(page)
    execute(page, PARALLEL)
    assert list(inserted(before, saved(page))) == ["CheckpointLoaderSimple"]
    execute(page, STOCK)
    assert saved(page) == before
