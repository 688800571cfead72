"""A checkpoint in one file, or diffusers' weights, draws what the stock loader draws of it. `test_stock_families.py`
has the authors' own layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from demo.host import ComfyHost
from tests.support.cases.files.single_file_cases import FILES, PUBLISHED, REFUSED, Originals, Weights, refused
from tests.support.cases.stock_cases import CASES
from tests.support.host.graphs import Job, bypass, latents, ranks, relative_error
from tests.support.programs import run_program

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
TEXT = {"positive": "text.safetensors", "negative": "other-text.safetensors"}


def save(weights: Weights, path: Path) -> None:
    save_file({key: value.clone().contiguous() for key, value in weights.items()}, path)


@pytest.fixture(scope="module")
def originals(comfyui: Path, models: Path) -> Originals:
    return Originals.written(comfyui, models)


@pytest.fixture(scope="module")
def found(comfyui: Path, originals: Originals, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By file, the words of a refusal."""
    folder = tmp_path_factory.mktemp("files")
    for kind in REFUSED:
        save(refused(kind, originals), folder / f"{kind}.safetensors")
    return run_program(comfyui, "tests.support.files.told:why_refused", *sorted(folder.iterdir()))


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_of_another_model_is_refused_by_name(kind: str, found: dict) -> None:
    for word in (kind, *REFUSED[kind]):
        assert word in found[f"{kind}.safetensors"]


def job(name: str, kind: str, originals: Originals, **changes: object) -> Job:
    """A sampler call on a file, which is written where it is not there yet."""
    path = originals.base / "models" / "diffusion_models" / f"{name}, {kind}.safetensors"
    if not path.exists():
        save(FILES[kind](name, originals[name]), path)
    given = {"group": None, **changes}
    return Job(path.name, **TEXT, seed=3, cfg=CASES[name].cfg, width=128, height=96, **given)


@pytest.fixture(scope="module")
def stock(host: ComfyHost, originals: Originals) -> Callable[[str, str], torch.Tensor]:
    """The latents that ComfyUI's own model code samples from a file."""
    return cache(lambda name, kind: latents(host, bypass(job(name, kind, originals).prompt())))


def test_weights_that_are_joined_as_they_are_read_do_not_count_as_pages(
    comfyui: Path, originals: Originals, tmp_path: Path
) -> None:
    """ComfyUI joins queries, keys and values of diffusers' files in RAM."""
    save(FILES["diffusers"]("sd3", originals["sd3"]), tmp_path / "joined.safetensors")
    found = run_program(comfyui, "tests.support.files.told:in_pages", tmp_path / "joined.safetensors")
    assert found and all(found.values())


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("kind", FILES)
def test_a_file_draws_what_the_stock_loader_draws(
    name: str, kind: str, host: ComfyHost, originals: Originals, stock: Callable
) -> None:
    sampled, right = latents(host, job(name, kind, originals, plan={"cfg": 1}).prompt()), stock(name, kind)
    if "fp8" not in kind:
        assert torch.equal(sampled, right)
    assert relative_error(sampled, right) <= TOLERANCE


def test_one_rank_gives_the_stock_bits_after_ranks_that_attend_otherwise_were_emptied(
    host: ComfyHost, originals: Originals, stock: Callable
) -> None:
    """Free memory takes the model off the ranks, which keep the ComfyUI that they have imported with its arguments."""
    name, kind = "flux-dev", "checkpoint"
    two, one = (job(name, kind, originals, plan=plan, group=1).prompt() for plan in ({"ulysses": 2}, {"cfg": 1}))
    latents(host, two)
    pids = ranks(host)
    host.free()
    assert ranks(host) == pids
    assert torch.equal(latents(host, one), stock(name, kind))
