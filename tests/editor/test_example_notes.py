"""The notes of the example workflows tell of every file, in English and in Chinese, and of two cards what the pack
computes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.support.editor.examples import EXAMPLES, FOLDER
from tests.support.templates.examples import TABLE
from tests.support.templates.two_cards import CARD_ROW, FILE, FILE_ROW, asked, card_row, file_row, texts

FIGURES = json.loads(FILE.read_text())
CHINESE = re.compile(r"[\u4e00-\u9fff]")
# Whose file holds a diffusion model and nothing more.
ALONE = [name for name, example in TABLE.items() if example.files and example.model.folder == "diffusion_models"]


def test_the_table_has_every_workflow() -> None:
    assert sorted(TABLE) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_note_names_every_file_and_what_two_cards_need_in_both_languages(name: str) -> None:
    for language, place, key in texts(json.loads((FOLDER / f"{name}.json").read_text())):
        text = place[key]
        assert bool(CHINESE.search(text)) == (language == "zh")
        assert [found[0] for found in FILE_ROW.finditer(text)] == [*map(file_row, TABLE[name].files)]
        cards = [card_row(cards, found, language) for cards, found in FIGURES.get(name, {}).items()]
        assert [found[0] for found in CARD_ROW.finditer(text)] == cards, "run templates.two_cards"
        assert len(cards) == (len(TABLE[name].cards) if TABLE[name].files else 0)


def test_what_a_card_keeps_whole_is_as_large_as_the_published_file() -> None:
    """The figures are computed from shapes; the size of the file is what its page says."""
    for name in ALONE:
        whole = [found for found in FIGURES[name].values() if not found["blocks"] and found["fits"]]
        for found in whole:
            # PixArt's is published in fp32, and loaded in bf16.
            published = TABLE[name].model.gb / (2 if name.startswith("PixArt") else 1)
            assert found["kept"] / 1e9 == pytest.approx(published, rel=0.03), name


def test_a_step_of_a_video_with_sound_needs_more_than_its_latents() -> None:
    """ComfyUI estimates memory for both in one row of numbers. For the video's frames alone, it would be 12 MB."""
    for name in ("LTX-2 text to video", "MiniMax H3 text to video"):
        assert all(found["working"] > 1e9 for found in FIGURES[name].values()), name


@pytest.mark.slow
def test_the_figures_are_what_parallelize_model_says(comfyui: Path) -> None:
    assert asked(comfyui) == FIGURES, "run templates.two_cards"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_thumbnail_says_whose_it_is(name: str) -> None:
    """One that ComfyUI ships, of what its template draws, is told by its name; others are pictures of the graph."""
    assert Image.open(FOLDER / f"{name}.jpg").format == "JPEG"
    assert (f"| {name}.jpg | {TABLE[name].base} |" in (FOLDER / "NOTICE.md").read_text()) == bool(TABLE[name].base)
