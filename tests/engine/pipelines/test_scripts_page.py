"""What the page on scripts shows runs as it stands, and its tables are complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from demo.host import REPOSITORY
from parallel_backend.models import known_spec
from parallel_backend.plan import ParallelPlan
from tests.support.cases import oracle
from tests.support.cases.library_cases import dit, dit_family, save_dit
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


@pytest.fixture
def on_ranks(ranks: RankPool, tmp_path: Path) -> Callable[..., object]:
    """Runs a script on two ranks."""
    return lambda *command: ranks.run(2, "library.script_ranks", str(tmp_path), *command)


def draws(script: str, folder: Path, run: Callable[..., object], expected: Image.Image) -> None:
    """What a script draws on a pipeline folder. run: starts it there on two ranks."""
    save_dit(folder / "pipeline")
    (folder / "script.py").write_text(script)
    run("script.py", "pipeline")
    got, right = (np.asarray(image, dtype=np.int16) for image in (Image.open(folder / "image.png"), expected))
    assert right.std() > 5 * ONE_LEVEL  # a picture, and not a plain colour that anything would be equal to
    assert got.shape == right.shape and np.abs(got - right).max() <= ONE_LEVEL


def plain_image() -> Image.Image:
    return dit()(PROMPT, num_inference_steps=20, generator=torch.Generator().manual_seed(0)).images[0]


def test_the_pages_parallel_pipeline_draws_the_plain_pipelines_image(
    on_ranks: Callable[..., object], tmp_path: Path
) -> None:
    draws(blocks("python")[0], tmp_path, on_ranks, plain_image())


@pytest.mark.slow  # the gate starts the engine by torchrun in `test_rank_failure.py`
def test_by_torchrun_as_a_person_starts_it_the_pages_parallel_pipeline_draws_it_too(
    own_ranks: None, tmp_path: Path
) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> None:
        subprocess.run([*launch, *command], cwd=tmp_path, env=environment, check=True, timeout=300)

    draws(blocks("python")[0], tmp_path, run, plain_image())


def test_the_pages_pipefusion_draws_the_oracles_image(on_ranks: Callable[..., object], tmp_path: Path) -> None:
    pipeline: Any = dit()
    pipeline.scheduler.set_timesteps(20)
    noise = torch.randn(1, 4, 32, 32, generator=torch.Generator().manual_seed(0))
    asked, unasked = ({"class_labels": torch.tensor([label])} for label in (*PROMPT, 1000))
    latents = oracle.sample(
        pipeline.transformer, known_spec(dit_family().model_class), dit_family().reference, pipeline.scheduler,
        noise, asked, unasked, guidance=4.0, patches=2, sync_steps=1, patch=dit_family().patch,
    )  # fmt: skip
    with torch.inference_mode():
        image = pipeline.vae.decode(latents / pipeline.vae.config.scaling_factor).sample
    draws(blocks("python")[1], tmp_path, on_ranks, VaeImageProcessor().postprocess(image)[0])


@pytest.mark.parametrize("place", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["xDiT", "diffusers"])
def test_a_script_changed_as_the_page_says_draws_the_plain_pipelines_image(
    place: int, on_ranks: Callable[..., object], tmp_path: Path
) -> None:
    """Those of another library go, the others stay or come."""
    ours = [line[1:] for line in blocks("diff")[place].splitlines() if line[0] in "+ "]
    draws(BEFORE + "\n".join(ours), tmp_path, on_ranks, plain_image())


def test_the_table_of_fields_has_every_field_of_a_plan_and_names_that_diffusers_has() -> None:
    rows = table("field")
    assert [row[0].strip("`") for row in rows] == [field.name for field in fields(ParallelPlan)]
    for name in re.findall(r"`(\w+)\.(\w+)`", "\n".join(row[3] for row in rows)):
        assert hasattr(getattr(diffusers, name[0]), name[1]), name
