"""A checkpoint in one file, in its authors' layout or diffusers', draws what the stock loader draws of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from demo.host import ComfyHost
from tests.support.cases.files.original_layouts import Weights
from tests.support.cases.files.single_file_cases import FILES, PUBLISHED, REFUSED, refused
from tests.support.host.graphs import Job, latents, ranks, relative_error
from tests.support.loaders import bypass
from tests.support.programs import run_program

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
TEXT = {"positive": "text.safetensors", "negative": "other-text.safetensors"}


def save(weights: Weights, path: Path) -> None:
    save_file({key: value.clone().contiguous() for key, value in weights.items()}, path)


@pytest.fixture(scope="module")
def found(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict | str]:
    """By file, the words of a refusal."""
    folder = tmp_path_factory.mktemp("files")
    for kind in REFUSED:
        save(refused(kind), folder / f"{kind}.safetensors")
    said = run_program(comfyui, "tests.support.files.describe_files", *sorted(folder.iterdir()))
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_of_another_model_is_refused_by_name(kind: str, found: dict) -> None:
    said = found[f"{kind}.safetensors"]
    assert isinstance(said, str), "it was taken for a supported model"
    for word in (kind, *REFUSED[kind]):
        assert word in said


def job(name: str, kind: str, models: Path, **changes: object) -> Job:
    """A sampler call on a file, which is written where it is not there yet."""
    path = models / "models" / "diffusion_models" / f"{name}, {kind}.safetensors"
    if not path.exists():
        save(FILES[kind](name), path)
    given = {"group": None, **changes}
    return Job(path.name, **TEXT, seed=3, cfg=PUBLISHED[name].cfg, width=128, height=96, **given)


@pytest.fixture(scope="module")
def stock(host: ComfyHost, models: Path) -> Callable[[str, str], torch.Tensor]:
    """The latents that ComfyUI's own model code samples from a file."""
    return cache(lambda name, kind: latents(host, bypass(job(name, kind, models).prompt())))


# Each layout on one rank, which gives the stock loader's bits, and one on two.
WAYS = [(kind, {"cfg": 1}) for kind in ("original", "checkpoint", "diffusers", "scaled fp8, checkpoint")]
WAYS += [("original", {"ulysses": 2})]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(("kind", "plan"), WAYS, ids=str)
def test_a_file_draws_what_the_stock_loader_draws(
    name: str, kind: str, plan: dict, host: ComfyHost, models: Path, stock: Callable
) -> None:
    sampled, right = latents(host, job(name, kind, models, plan=plan).prompt()), stock(name, kind)
    if plan == {"cfg": 1} and "fp8" not in kind:
        assert torch.equal(sampled, right)
    assert relative_error(sampled, right) <= TOLERANCE


def test_one_rank_gives_the_stock_bits_after_ranks_that_attend_otherwise_were_emptied(
    host: ComfyHost, models: Path, stock: Callable
) -> None:
    """Free memory takes the model off the ranks, which keep the ComfyUI that they have imported with its arguments."""
    name, kind = "flux-dev", "original"
    two, one = (job(name, kind, models, plan=plan, group=1).prompt() for plan in ({"ulysses": 2}, {"cfg": 1}))
    latents(host, two)
    pids = ranks(host)
    host.free()
    assert ranks(host) == pids
    assert torch.equal(latents(host, one), stock(name, kind))
