"""The oldest ComfyUI that is supported: what its classes and its loader's files give is what ranks give.

It runs beside the packages of the newer one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from demo.host import ComfyHost
from tests.conftest import EXTRA_ARGS, HOST_ENV
from tests.engine.test_host_models import allows
from tests.support.cases.files.host_cases import HOST_CASES
from tests.support.cases.references import relative_error
from tests.support.host.graphs import latents, status
from tests.support.host.stock_prompts import prompt, write_cases
from tests.support.programs import run_apart
from tests.support.ranks.pool import RankPool

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
PLANS = [{"cfg": 2}, {"ulysses": 2}, {"ring": 2}]
CHANGED = "krea-2"
# Classes that came later, and PiD's, which takes more by now.
LATER = {"mage-flow", "joyimage", "minimax-h3", "minimax-h3-masks", "pid"}
# What its own class does not run in one process, on this torch.
BROKEN = {"hidream-o1"}


@pytest.fixture(scope="module")
def older_comfyui() -> Path:
    """Its folder."""
    path = os.environ.get("COMFYUI_OLDER_PATH", "")
    if not (Path(path) / "main.py").is_file():
        pytest.fail(f"COMFYUI_OLDER_PATH is {path!r}; run `python3 dev.py test --slow`, which sets one up.")
    return Path(path)


@pytest.fixture(scope="module")
def rows(older_comfyui: Path) -> dict[str, list[str]]:
    """The rows of the equality table that it can make, and what it has changed of their classes."""
    return run_apart(older_comfyui, "tests.support.files.told:rows_of")


def test_what_it_has_changed_is_known(rows: dict[str, list[str]]) -> None:
    assert {name: changes for name, changes in rows.items() if changes} == dict.fromkeys(
        ("krea2", "krea2-reference"), ["blocks has no argument timestep_zero_index"]
    )


def test_its_classes_on_ranks_equal_themselves(
    rows: dict[str, list[str]], older_comfyui: Path, own_ranks: None, tmp_path: Path
) -> None:
    """Those that it has changed by rows alone."""
    own = [row for row in rows if row not in BROKEN]
    cases = [(row, plan) for row in own for plan in PLANS if allows(row, plan) and ("cfg" in plan or not rows[row])]
    assert {*rows}.isdisjoint(LATER) and len(cases) > 200
    results: dict[str, torch.Tensor] = {}
    by_world = {1: [(row, {}, False) for row in own], 2: [(row, plan, True) for row, plan in cases]}
    with RankPool(tmp_path, COMFYUI_PATH=str(older_comfyui)) as pool:
        for world, jobs in by_world.items():
            pool.run(world, "host_ranks", jobs, str(tmp_path / "out.safetensors"))
            results.update(load_file(tmp_path / "out.safetensors"))
    far = {}
    for row, plan in cases:
        alone, shared = results[f"{row} | {{}} | False"], results[f"{row} | {json.dumps(plan)} | True"]
        error = relative_error(shared, alone)
        if not error <= TOLERANCE:
            far[f"{row} {plan}"] = error
    assert not far


@pytest.fixture(scope="module")
def older_host(older_comfyui: Path, models: Path) -> Iterator[ComfyHost]:
    write_cases(older_comfyui, models, [*HOST_CASES])
    with ComfyHost(older_comfyui, models, extra_args=EXTRA_ARGS, env={**HOST_ENV, "PARALLELDIT_RANKS": "2"}) as host:
        yield host


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", [name for name in HOST_CASES if name != CHANGED and not name.startswith((*BROKEN,))])
def test_its_files_draw_what_its_own_loader_draws(name: str, plan: dict[str, int], older_host: ComfyHost) -> None:
    right = latents(older_host, prompt(name))
    assert relative_error(latents(older_host, prompt(name, plan)), right) <= TOLERANCE


def test_a_class_that_it_has_changed_has_its_batch_shared_and_that_is_said(older_host: ComfyHost) -> None:
    assert relative_error(latents(older_host, prompt(CHANGED, {})), latents(older_host, prompt(CHANGED))) <= TOLERANCE
    found = status(older_host)
    assert (found["plan"]["cfg"], found["plan"]["ulysses"]) == (2, 1)
    assert "SingleStreamDiT is not the known one (blocks has no argument timestep_zero" in found["note"]
