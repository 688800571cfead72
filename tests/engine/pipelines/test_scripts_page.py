"""What the page on scripts shows runs as it stands, and its tables are complete."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from demo.host import REPOSITORY
from parallel_backend.plan import ParallelPlan
from tests.support.cases.library_cases import dit, save_dit
from tests.support.ranks.pool import RankPool

PAGE = (REPOSITORY / "docs" / "scripts.md").read_text()
PROMPT = [207]
# What the changed scripts take for granted.
BEFORE = f"import sys, torch\nfrom diffusers import DiffusionPipeline\nfolder, prompt = sys.argv[1], {PROMPT}\n"
ONE_LEVEL = 1  # of 255: what rounding to pixels can make of a smaller difference


def blocks(language: str) -> list[str]:
    """The page's blocks in a language, as they stand."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def table(first_cell: str) -> list[list[str]]:
    """The rows of the table whose head begins with this cell."""
    lines = PAGE[PAGE.index(f"| {first_cell} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("place", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["xDiT", "diffusers"])
def test_a_script_changed_as_the_page_says_draws_the_plain_pipelines_image(
    place: int, ranks: RankPool, tmp_path: Path
) -> None:
    """Six lines each: those of another library go, the others stay or come."""
    change = blocks("diff")[place]
    ours = [line[1:] for line in change.splitlines() if line[0] in "+ "]
    assert len(ours) == 6
    save_dit(tmp_path / "pipeline")
    (tmp_path / "script.py").write_text(BEFORE + "\n".join(ours))
    ranks.run(2, "library.script_ranks", str(tmp_path), "script.py", "pipeline")
    expected = dit()(PROMPT, num_inference_steps=20, generator=torch.Generator().manual_seed(0)).images[0]
    got, right = (np.asarray(image, dtype=np.int16) for image in (Image.open(tmp_path / "image.png"), expected))
    assert right.std() > 5 * ONE_LEVEL and np.abs(got - right).max() <= ONE_LEVEL


def test_the_table_of_fields_has_every_field_of_a_plan_and_names_that_diffusers_has() -> None:
    rows = table("field")
    assert [row[0].strip("`") for row in rows] == [field.name for field in fields(ParallelPlan)]
    for name in re.findall(r"`(\w+)\.(\w+)`", "\n".join(row[3] for row in rows)):
        assert hasattr(getattr(diffusers, name[0]), name[1]), name
