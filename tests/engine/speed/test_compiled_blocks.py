"""Blocks that run compiled: each is one graph, whatever is exchanged inside of it, and computes what it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from parallel_backend.plan import COMPILED_STEPS, ParallelPlan
from parallel_backend.seams import compiled
from tests.support.ranks.pool import RankPool

EXACT = 1e-5  # of fp32, whose operations are in another order in a kernel of several
# Library, name, plans one after the other, where the weights wait; and how many kinds of blocks there are.
CASES = [
    ("comfyui", "flux-dev", [{"ulysses": 2}, {"ring": 2}], "shared", 2),
    ("diffusers", "pixart-alpha", [{"ulysses": 2}], None, 1),
    ("comfyui", "wan-t2v", [{"ring": 2}], None, 1),
]
SLOW_CASES = [
    ("comfyui", "flux-dev", [{}], "host", 2),
    ("comfyui", "qwen-image-mask", [{"ulysses": 2}, {"cfg": 2}], "host", 1),
    ("comfyui", "qwen-image-mask", [{"ring": 2}], "shared", 1),
    ("diffusers", "flux-dev", [{"ulysses": 2}, {"ring": 2}, {"cfg": 2}], "shared", 2),
    ("diffusers", "pixart-alpha", [{"cfg": 2}], "host", 1),
    ("diffusers", "flux-dev", [{}], None, 2),
]
STAGED = [
    ("comfyui", "flux-dev", [{"pipefusion": 2, "patches": 3}]),
    ("diffusers", "flux-dev", [{"pipefusion": 2, "patches": 3}]),
]


def run(ranks: RankPool, case: tuple, weights: str | None, backend: str = "eager") -> list[dict[str, Any]]:
    """What every rank found."""
    library, name, plans = case
    world = ParallelPlan.from_json(plans[0]).world_size
    return [found for (found,) in ranks.run(world, "speed.compiled_ranks", [[library, name, plans, weights, backend]])]


@pytest.mark.parametrize(
    ("library", "name", "plans", "weights", "kinds"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
    ids=str,
)
def test_blocks_of_a_kind_are_one_graph_and_another_size_brings_one_more(
    library: str, name: str, plans: list, weights: str | None, kinds: int, ranks: RankPool
) -> None:
    """Four runs of sizes of which the first and the last are alike."""
    for found in run(ranks, (library, name, plans), weights):
        assert found["breaks"] == 0
        first, second, third, again = found["graphs"][:4]
        assert (first, third, again) == (kinds, second, second)
        assert second <= 2 * kinds
        assert found["graphs"][-1] <= 2 * kinds * len(plans), "another plan, or parked between"
        assert max(found["errors"], default=0) <= EXACT


@pytest.mark.slow
@pytest.mark.parametrize(("library", "name", "plans"), STAGED, ids=str)
def test_pipefusion_runs_the_same_compiled(library: str, name: str, plans: list, ranks: RankPool) -> None:
    found = run(ranks, (library, name, plans), None)
    assert all(each["breaks"] == 0 for each in found)
    errors = [error for each in found for error in each["errors"]]
    assert errors and max(errors) == 0
    assert all(each["graphs"][1] == each["graphs"][0] for each in found), "a second sampling brings none"


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_inductors_kernels_compute_what_the_blocks_do(world: int, ranks: RankPool) -> None:
    case = ("diffusers", "flux-dev", [{"ulysses": world}])
    found = run(ranks, case, "host", "inductor")
    assert max(found[0]["errors"]) <= EXACT


def test_a_plan_compiles_for_as_many_steps_as_it_says() -> None:
    off, on, auto = (ParallelPlan(compile=value) for value in ("off", "on", "auto"))
    assert not off.compiles(1000)
    assert on.compiles(1)
    assert [auto.compiles(steps) for steps in (COMPILED_STEPS - 1, COMPILED_STEPS)] == [False, True]


def test_auto_compiles_where_it_pays_and_can_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(compiles: str, device: str, lacks: str = "") -> Mapping[str, Any]:
        monkeypatch.setattr(compiled, "lack", lambda _device: lacks)
        blocks = compiled.CompiledBlocks([], torch.device(device))
        return blocks.settings_for(ParallelPlan(compile=compiles), COMPILED_STEPS)

    assert settings("auto", "cuda") == settings("on", "cpu") == compiled.BY_PLAN
    assert settings("auto", "cpu") == settings("auto", "cuda", "no Triton") == {}
