"""Hidden states that travel in place of queries, keys and values equal one process, and are refused by name where they
cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from parallel_backend.errors import PlanError, RequestError
from parallel_backend.groups.mesh import Axis
from parallel_backend.models import spec_for
from parallel_backend.models.comfyui import named_spec
from parallel_backend.models.projections import JOINT, Projections
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.backends import NATIVE
from parallel_backend.seams.exchange.hidden import HiddenExchange, Projected, own_heads
from parallel_backend.seams.filled.hidden import FilledHidden
from parallel_backend.seams.forward import ForwardSlot
from parallel_backend.seams.layout import TokenLayout
from tests.support.cases.families import FAMILIES, UNEVEN
from tests.support.cases.host import CASES as ROWS
from tests.support.cases.references import plain_diffusers, relative_error
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running


def projects(model_class: str) -> bool:
    spec = named_spec(model_class)
    return spec is not None and spec.projects


TOLERANCE = 1e-5
ALONE: dict[str, Any] = {}
TWO, THREE = ({"ulysses": ranks, "exchange": "hidden"} for ranks in (2, 3))
SMALLEST = {"ulysses": 2, "exchange": "smallest"}
# Four heads, and tokens that divide by neither two nor three.
FAMILY_CASES = [
    *((name, THREE) for name in ("flux-dev", "qwenimage-mask", "sd3.5", "z-image")),
    *((name, SMALLEST) for name, family in FAMILIES.items() if spec_for(family.model_class).projections),
]
ROW_CASES = [
    *((row, THREE) for row in ("flux-dev", "qwen-image-mask", "zimage-omni")),
    *((row, SMALLEST) for row, case in ROWS.items() if projects(case.model_class)),
    ("flux2-edit-index-timestep-zero", THREE),
    ("hunyuanvideo-i2v", THREE),
    ("lumina2", TWO),  # of whose heads of keys and values there are two
]


@pytest.fixture(scope="module")
def predictions(
    request: pytest.FixtureRequest, ranks: RankPool, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """Of the families' cases that run."""
    root, results = tmp_path_factory.mktemp("hidden"), {}
    wanted = running(request, "family", "plan")
    for world in {plan["ulysses"] for _, plan in wanted}:
        cases = [
            {
                "name": f"{family} {json.dumps(plan)}", "family": family, "plan": plan, "dtype": "fp32",
                "folder": str(FAMILIES[family].save(root / family)), "shape": FAMILIES[family].shapes[UNEVEN],
            }
            for family, plan in wanted
            if plan["ulysses"] == world
        ]  # fmt: skip
        (root / "cases.json").write_text(json.dumps(cases))
        ranks.run(world, "model_ranks", str(root / "cases.json"), str(root / f"{world}.safetensors"))
        results.update(load_file(root / f"{world}.safetensors"))
    return results


@pytest.mark.parametrize(("family", "plan"), FAMILY_CASES, ids=str)
def test_a_family_equals_plain_diffusers(
    family: str, plan: dict[str, Any], predictions: dict[str, torch.Tensor]
) -> None:
    got = predictions[f"{family} {json.dumps(plan)}"]
    assert relative_error(got, plain_diffusers(family, UNEVEN)) <= TOLERANCE


@pytest.fixture(scope="module")
def outputs(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """Of the classes' cases that run."""
    root, results = tmp_path_factory.mktemp("hidden-host"), {}
    wanted = [(row, plan, True) for row, plan in running(request, "row", "plan")]
    by_world = {1: [(row, ALONE, False) for row in {row for row, *_ in wanted}]}
    for world in {plan["ulysses"] for _, plan, _ in wanted}:
        by_world[world] = [case for case in wanted if case[1]["ulysses"] == world]
    for world, cases in by_world.items():
        (root / "cases.json").write_text(json.dumps(cases))
        ranks.run(world, "host_ranks", str(root / "cases.json"), str(root / f"{world}.safetensors"))
        results.update(load_file(root / f"{world}.safetensors"))
    return results


@pytest.mark.parametrize(("row", "plan"), ROW_CASES, ids=str)
def test_a_class_of_comfyui_equals_itself(row: str, plan: dict[str, Any], outputs: dict[str, torch.Tensor]) -> None:
    alone = outputs[f"{row} | {json.dumps(ALONE)} | False"]
    assert relative_error(outputs[f"{row} | {json.dumps(plan)} | True"], alone) <= TOLERANCE


@pytest.mark.parametrize(
    ("plan", "words", "fields"),
    [
        ({}, "a way to exchange over ulysses, which is 1", ("exchange", "ulysses")),
        ({"ulysses": 2, "ring": 2}, "all tokens in heads of its own", ("exchange", "ring")),
        ({"ulysses": 2, "tp": 2}, "all tokens in heads of its own", ("exchange", "tp")),
        ({"ulysses": 2, "pipefusion": 2}, "PipeFusion's patches do not allow", ("exchange", "pipefusion")),
        ({"ulysses": 2, "exchange_dtype": "fp8"}, "numbers of the model's own", ("exchange", "exchange_dtype")),
    ],
)
def test_a_plan_that_leaves_no_room_for_it_is_refused(plan: dict[str, Any], words: str, fields: tuple[str]) -> None:
    with pytest.raises(PlanError, match=words) as refused:
        ParallelPlan(exchange="hidden", **plan).check_exchange(projects=True)
    assert refused.value.fields == fields


def test_a_family_that_does_not_say_how_it_projects_is_refused() -> None:
    plan = ParallelPlan(ulysses=2, exchange="hidden")
    with pytest.raises(PlanError, match="for this one that is not known here"):
        plan.check_model(**spec_for("WanTransformer3DModel").limits(FAMILIES["wan-t2v"].config))
    plan.check_model(**spec_for("FluxTransformer2DModel").limits(FAMILIES["flux-dev"].config))
    wan = named_spec(ROWS["wan-t2v"].model_class)
    assert wan and not wan.projects


class Attention(torch.nn.Module):
    """Four heads of 4, and as many of keys and values as asked for."""

    def __init__(self, kv_heads: int = 4, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.kv_heads = kv_heads
        for name, heads in (("to_q", 4), ("to_k", kv_heads), ("to_v", kv_heads)):
            setattr(self, name, torch.nn.Linear(16, 4 * heads).to(dtype))


SPEC = Projections(JOINT, {"x": "img"}, kv_heads=("kv_heads",))


def chosen(exchange: str, module: torch.nn.Module, ranks: int = 2) -> list[Any]:
    axis = Axis(None, ranks, 0)
    hidden = HiddenExchange(axis, TokenLayout("img", axis, ForwardSlot()), NATIVE, 4, 4)
    plan = ParallelPlan(ulysses=ranks, exchange=exchange)
    return own_heads(plan, [(module, SPEC, ("img",))], hidden, lambda weight: weight.dtype)


def test_the_smallest_is_what_is_fewer_bytes() -> None:
    assert chosen("smallest", Attention(kv_heads=4))
    assert not chosen("smallest", Attention(kv_heads=2)), "as many bytes, and one collective more"
    assert not chosen("smallest", Attention(kv_heads=4), ranks=3), "as many bytes"
    assert not chosen("heads", Attention(kv_heads=4))
    assert chosen("hidden", Attention(kv_heads=2))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Attention(dtype=torch.float8_e4m3fn), "weights of to_q are quantised"),
        (Attention(kv_heads=1), "1 heads of keys and values leave one of 2 ranks without any"),
    ],
    ids=["quantised", "few heads"],
)
def test_a_model_whose_rows_cannot_be_shared_exchanges_heads_or_is_refused(module: Attention, words: str) -> None:
    assert not chosen("smallest", module)
    with pytest.raises(PlanError, match=words):
        chosen("hidden", module)


def test_a_projection_that_is_split_elsewhere_is_an_error() -> None:
    own, others = torch.zeros(1, 3, 6), torch.zeros(1, 2, 5)
    assert torch.split(Projected(own, others), [12, 5], dim=-1) == (own, others)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="not behind queries, keys and values"):
        Projected(own, others).split([11, 6], -1)


def test_patched_attention_and_compiled_blocks_exchange_heads_or_are_refused() -> None:
    options = {"transformer_options": {"patches": {"attn1_patch": [print]}}}
    axis = Axis(None, 2, 0)
    exchange = HiddenExchange(axis, TokenLayout("img", axis, ForwardSlot()), NATIVE, 4, 4)
    auto, asked = (
        FilledHidden(ParallelPlan(ulysses=2, exchange=each), exchange, {}) for each in ("smallest", "hidden")
    )
    assert auto.enter(options, []) == set()
    assert exchange.paused
    auto.enter({}, [])
    assert not exchange.paused
    auto.compile(True)
    auto.enter({}, [])
    assert exchange.paused
    with pytest.raises(RequestError, match="patches attention"):
        asked.enter(options, [])
    with pytest.raises(PlanError, match="does not work in compiled blocks"):
        asked.compile(True)
