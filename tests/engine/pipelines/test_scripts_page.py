"""What the page on scripts shows runs as it stands, and its tables are complete."""

from __future__ import annotations

import inspect
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
from parallel_backend.sampling.denoiser import Denoiser
from tests.support.cases.library_cases import dit, save_dit, sd3_with_encoders
from tests.support.cases.references import relative_error
from tests.support.ranks.pool import RankPool

PAGE = (REPOSITORY / "docs" / "scripts.md").read_text()
PROMPT = [207]
# What the changed scripts take for granted.
BEFORE = f"import sys, torch\nfrom diffusers import DiffusionPipeline\nfolder, prompt = sys.argv[1], {PROMPT}\n"
TOLERANCE = 1e-5
ABSENT = "text_encoder_3=None, tokenizer_3=None, image_encoder=None, feature_extractor=None"  # in the tiny pipeline
ONE_LEVEL = 1  # of 255: what rounding to pixels can make of a smaller difference


def blocks(language: str) -> list[str]:
    """The page's blocks in a language, as they stand."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def table(first_cell: str) -> list[list[str]]:
    """The rows of the table whose head begins with this cell."""
    lines = PAGE[PAGE.index(f"| {first_cell} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_pages_conditions_of_a_text_give_the_pipelines_image(ranks: RankPool, tmp_path: Path) -> None:
    (script,) = (each for each in blocks("python") if "encode_prompt" in each)
    for real, tiny in {"1, 16, 64, 64": "1, 4, 16, 16", "transformer.model)": f"transformer.model, {ABSENT})"}.items():
        script = script.replace(real, tiny)
    pipeline = sd3_with_encoders()
    pipeline.save_pretrained(tmp_path / "pipeline")
    (tmp_path / "script.py").write_text(script)
    ranks.run(2, "library.script_ranks", str(tmp_path), "script.py", "pipeline")
    noise = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    pipeline.set_progress_bar_config(disable=True)
    expected = pipeline(
        "a red cat", latents=noise, height=32, width=32, num_inference_steps=20, guidance_scale=5.0,
        output_type="latent",
    ).images  # fmt: skip
    got = torch.load(tmp_path / "latents.pt", weights_only=True)
    assert relative_error(got, expected) <= TOLERANCE


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


def test_the_table_of_arguments_has_those_of_the_engines_loop() -> None:
    optional = [
        name
        for name, parameter in inspect.signature(Denoiser.sample).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    assert [row[0].strip("`") for row in table("argument of `sample`")] == optional
