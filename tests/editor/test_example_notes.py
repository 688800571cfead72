"""The example workflows are what ComfyUI's templates and the table of their files make; notes tell of every file, in
English and in Chinese, and of two cards what the pack computes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.support.editor.examples import EXAMPLES, FOLDER
from tests.support.templates.examples import TABLE
from tests.support.templates.make import NOTICE, TRANSLATED, make, text_of
from tests.support.templates.notes import EN, ZH
from tests.support.templates.stock_graph import opened, settled
from tests.support.templates.two_cards import FILE, asked
from tests.support.templates.workflows import RELEASE, release, templates_folder

FIGURES = json.loads(FILE.read_text())
ROW = re.compile(r"\| \[?([\w.-]+\.safetensors)(?:]\((.*)\))? \| (\w+) \| ([\d.]+ [MG]B) \|")
CARD = re.compile(r"(?m)^\| \d+ GiB \| [\w=×. ]+ \| [\d.]+ GiB.* \|$")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
# Whose file holds a diffusion model and nothing more.
ALONE = [name for name, example in TABLE.items() if example.files and example.model.folder == "diffusion_models"]
needs_templates = pytest.mark.skipif(templates_folder() is None, reason="needs ComfyUI's templates package")


def notes(name: str) -> dict[str, str]:
    """By title: the note, and what it is in Chinese."""
    workflow = json.loads((FOLDER / f"{name}.json").read_text())
    (node,) = [node for node in workflow["nodes"] if node["type"] == "MarkdownNote"]
    other = node["properties"][TRANSLATED][ZH.language]
    return {node["title"]: node["widgets_values"][0], other["title"]: other["text"]}


def test_the_table_has_every_workflow() -> None:
    assert sorted(TABLE) == sorted(EXAMPLES)


@needs_templates
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_workflow_is_what_its_base_and_the_table_make(name: str) -> None:
    if release() != RELEASE:
        pytest.skip(f"the workflows are made from {RELEASE}, not from {release()}")
    made = text_of(make(name, TABLE[name], FIGURES.get(name, {})))
    assert (FOLDER / f"{name}.json").read_text() == made, "run python -m tests.support.templates.make"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_note_names_every_file_in_both_languages(name: str) -> None:
    english, chinese = notes(name)[EN.title], notes(name)[ZH.title]
    assert CHINESE.search(chinese) and not CHINESE.search(english)
    assert ROW.findall(english) == ROW.findall(chinese)
    files = {(file.name, file.url, file.folder) for file in TABLE[name].files}
    assert {row[:3] for row in ROW.findall(english)} == files
    for text in (english, chinese):
        assert len(CARD.findall(text)) == (len(TABLE[name].cards) if files else 0)


def test_what_a_card_keeps_whole_is_as_large_as_the_published_file() -> None:
    """The figures are computed from shapes; the size of the file is what its page says."""
    for name in ALONE:
        whole = [found for found in FIGURES[name].values() if not found["blocks"] and found["fits"]]
        for found in whole:
            # PixArt's is published in fp32, and loaded in bf16.
            published = TABLE[name].model.gb / (2 if name.startswith("pixart") else 1)
            assert found["kept"] / 1e9 == pytest.approx(published, rel=0.03), name


def test_a_step_of_a_video_with_sound_needs_more_than_its_latents() -> None:
    """ComfyUI estimates memory for both in one row of numbers. For the video's frames alone, it would be 12 MB."""
    for name in ("ltx2_text_to_video", "minimax_h3_text_to_video"):
        assert all(found["working"] > 1e9 for found in FIGURES[name].values()), name


@pytest.mark.slow
def test_the_figures_are_what_parallelize_model_says(comfyui: Path) -> None:
    assert asked(comfyui) == FIGURES, "run python -m tests.support.templates.two_cards, then make"


@needs_templates
def test_switches_are_set_and_what_they_leave_out_is_gone() -> None:
    """Of a template with all of them: a subgraph, primitives, a sum, switches."""
    folder = templates_folder()
    assert folder
    graph = settled(opened(json.loads((folder / "video_wan2_2_14B_t2v.json").read_text())), {}, {})
    kinds = {node.type for node in graph.values()}
    assert kinds.isdisjoint({"ComfySwitchNode", "PrimitiveInt", "ComfyMathExpression", "LoraLoaderModelOnly"})
    (latent,) = [node for node in graph.values() if node.type == "EmptyHunyuanLatentVideo"]
    assert latent.saved["widgets_values"] == [640, 640, 81, 1], "five seconds of 16 frames, and one"
    samplers = [node for node in graph.values() if node.type == "KSamplerAdvanced"]
    assert sorted(node.value("end_at_step") for node in samplers) == [10, 20]
    models = {graph[came.node].type for node in samplers for name, came in node.linked.items() if name == "model"}
    assert models == {"ModelSamplingSD3"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_thumbnail_says_whose_it_is(name: str) -> None:
    """One that ComfyUI ships, of what its template draws, is told by its name; others are pictures of the graph."""
    assert Image.open(FOLDER / f"{name}.jpg").format == "JPEG"
    assert (f"| {name}.jpg | {TABLE[name].base} |" in NOTICE.read_text()) == bool(TABLE[name].base)
