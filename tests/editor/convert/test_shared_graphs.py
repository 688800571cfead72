"""Graphs as people share them become parallel by one command, and then stock again as they were: loaders of other
packs, old files, group nodes, prompts."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.editor.converted import PARALLEL, STOCK, UNDO_STEPS, execute, inserted, saved, without_view
from tests.support.editor.editor import Editor
from tests.support.editor.shared_graphs import GRAPHS, PROMPT

TOASTS = "() => document.querySelectorAll('.p-toast-close-button').forEach((button) => button.click())"
LOAD_PROMPT = "(prompt) => window.app.loadApiJson(prompt, 'prompt')"


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
