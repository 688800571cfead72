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
    ("diffusers", "flux-dev", [{"ulysses": 2}, {"ring": 2}, {"cfg": 2}], "shared", 2),
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
def test_pipefusion_runs_the_same_compiled(ranks: RankPool) -> None:
    found = run(ranks, ("comfyui", "flux-dev", [{"pipefusion": 2, "patches": 3}]), None)
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
        monkeypatch.setattr(compiled, "why_no_compiler", lambda is_cpu: lacks)
        blocks = compiled.CompiledBlocks([], torch.device(device))
        return blocks.settings_for(ParallelPlan(compile=compiles), COMPILED_STEPS)

    assert settings("auto", "cuda") == settings("on", "cpu") == compiled.BY_PLAN
    assert settings("auto", "cpu") == settings("auto", "cuda", "no Triton") == {}


class Branching(torch.nn.Module):
    """A block whose own code branches on plain options, as LTX-2's does on those that leave out attention."""

    def forward(self, x: torch.Tensor, transformer_options: dict[str, Any]) -> torch.Tensor:
        x = x + transformer_options["sigmas"]
        if transformer_options.get("run_attention", True):
            x = x * 2
        return x - 1 if "patches" in transformer_options else x


def test_a_graph_is_of_the_plain_options_that_it_saw_and_of_no_object() -> None:
    block, asked = Branching(), [{}, {"run_attention": False}, {"patches": {}}, {"run_attention": True}]
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    for options in [*asked, *asked]:
        given = torch.ones(3), {"sigmas": torch.rand(1), "callback": object(), **options}
        right = block(*given)
        with compiled.CompiledBlocks([block], torch.device("cpu")).running({"backend": "eager"}):
            assert torch.equal(block(*given), right), options
    assert counters["stats"]["unique_graphs"] <= len(asked)
