"""Graphs as people share them become parallel by one command, and then stock again as they were: loaders of other
packs, old files, group nodes, prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.editor.converted import PARALLEL, STOCK, execute, inserted, saved, without_view
from tests.support.editor.editor import UNDO_STEPS, Editor

# Small ones of the kinds that people share. Each has the nodes that make a model which is then made parallel, by type,
# and what the editor says of others. tests/web/convert.test.mjs has more: other packs' loaders, Set and Get.
GRAPHS = json.loads((Path(__file__).parent / "shared_graphs.json").read_text())
# In API format, as it is dropped into the editor.
PROMPT = {
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
    "5": {"class_type": "LoraLoaderModelOnly", "inputs": {"model": ["4", 0], "lora_name": "l", "strength_model": 1.0}},
    "3": {"class_type": "KSampler", "inputs": {"model": ["5", 0], "seed": 1, "steps": 20, "cfg": 7.0}},
}
TOASTS = "() => document.querySelectorAll('.p-toast-close-button').forEach((button) => button.click())"
LOAD_PROMPT = "(prompt) => window.app.loadApiJson(prompt, 'prompt')"


@pytest.mark.parametrize("name", GRAPHS)
def test_a_shared_graph_becomes_parallel_in_one_step_and_is_the_same_again(name: str, editor: Editor) -> None:
    page, shared = editor.page, GRAPHS[name]
    editor.open_alone(shared["workflow"])
    editor.open_alone(saved(page))  # what the editor itself changes as it opens and saves
    before, steps = saved(page), page.evaluate(UNDO_STEPS)
    page.evaluate(TOASTS)
    execute(page, PARALLEL)
    if shared["said"]:
        expect(page.get_by_text(shared["said"])).to_be_visible()
    between = saved(page)
    assert sorted(inserted(before, between)) == sorted(shared["made"])
    assert page.evaluate(UNDO_STEPS) == steps + bool(shared["made"])
    execute(page, PARALLEL)
    assert saved(page) == between, "a second one stands there"
    editor.open_alone(between)
    assert without_view(saved(page)) == without_view(between), "the saved file is another"
    execute(page, STOCK)
    assert without_view(saved(page)) == without_view(before)


def test_a_prompt_that_is_dropped_into_the_editor_becomes_parallel(editor: Editor, page: Page) -> None:
    page.evaluate(LOAD_PROMPT, PROMPT)
    before = saved(page)
    execute(page, PARALLEL)
    assert list(inserted(before, saved(page))) == ["CheckpointLoaderSimple"]
    execute(page, STOCK)
    assert saved(page) == before
