"""A request that a model cannot take is refused before its forward, in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parallel_backend.costs.auto import PlanOfRun, list_model_plans
from parallel_backend.costs.forward import Work
from parallel_backend.errors import PlanError
from parallel_backend.models.checks import check_module, list_spec_mismatches
from parallel_backend.plan import ParallelPlan
from tests.support.cases.families import FAMILIES


@pytest.mark.parametrize("plan", [{"ulysses": 2}, {"ring": 2, "pipefusion": 2, "patches": 1}])
def test_tokens_that_linear_attention_mixes(plan: dict[str, Any]) -> None:
    """Stages alone are exact."""
    model = FAMILIES["sana"].build()
    with pytest.raises(PlanError, match="tokens of SanaTransformer2DModel cannot be shared: its attention is linear"):
        check_module(ParallelPlan(**plan), model)
    check_module(ParallelPlan(pipefusion=2, patches=1, cfg=2), model)
    with pytest.raises(PlanError, match="LatteTransformer3DModel cannot be shared out over pipeline stages"):
        check_module(ParallelPlan(pipefusion=2, patches=1), FAMILIES["latte"].build())


def auto_plan(devices: int, model: torch.nn.Module, work: Work) -> ParallelPlan:
    """Of a model whose forward is not counted."""
    return list_model_plans(devices, model, work)[0]


def of_comfyui(name: str, **attributes: object) -> torch.nn.Module:
    """A module that has the name of one of ComfyUI's classes, and nothing in it."""
    module, _, qualname = name.rpartition(".")
    return type(qualname, (torch.nn.Module,), {"__module__": module, **attributes})()


UNET = "comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel"
IMAGE_UNET, COUPLED = of_comfyui(UNET), of_comfyui(UNET)
COUPLED.add_module("time_stack", torch.nn.Identity())
UNKNOWN, EMPTY_FLUX = of_comfyui("comfy.ldm.new.model.New"), of_comfyui("comfy.ldm.flux.model.Flux")


@pytest.mark.parametrize(
    ("model", "plan", "said"),
    [
        (of_comfyui("comfy.ldm.ace.model.ACEStepTransformer2DModel"), {"ring": 2}, "cannot be shared: its attention"),
        (COUPLED, {"dp": 2}, "they are the frames"),
        (IMAGE_UNET, {"ring": 2}, "it has no channel_mult"),
        (EMPTY_FLUX, {"ulysses": 2}, "it has no double_blocks"),
        (UNKNOWN, {"ulysses": 2}, "does not work for New yet"),
        (UNKNOWN, {"attention": "flash"}, "New attends as ComfyUI does"),
        (UNKNOWN, {"weights": "host"}, "the blocks of New are not known here"),
        (IMAGE_UNET, {"weights": "host"}, "the blocks of UNetModel are not known"),
        (IMAGE_UNET, {"weights": "shared"}, "needs ranks that compute with the same"),
    ],
)
def test_a_plan_that_a_class_of_comfyui_forbids(model: torch.nn.Module, plan: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said) as raised:
        check_module(ParallelPlan(**plan), model)
    assert raised.value.fields == tuple(plan)


def test_weights_that_wait_block_by_block_need_blocks_and_for_sharing_somebody_to_share_with() -> None:
    with pytest.raises(PlanError, match="UNetModel") as raised:
        check_module(ParallelPlan(cfg=2, weights="shared"), IMAGE_UNET)
    assert raised.value.fields == ("weights",) and "own partial loading" in str(raised.value)
    for plan in {"weights": "host"}, {"weights": "host", "weight_blocks": 3}, {"weights": "shared", "cfg": 2}:
        check_module(ParallelPlan(**plan), FLUX)
    check_module(ParallelPlan(cfg=2, weights="whole"), UNKNOWN)
    check_module(ParallelPlan(cfg=2, dp=2), IMAGE_UNET)


class SingleBlock(torch.nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.num_heads, self.hidden_size = heads, 64 * heads

    def forward(self, x, vec, pe, attn_mask=None, modulation_dims=None, transformer_options=None):
        raise NotImplementedError


def flux(heads: int) -> torch.nn.Module:
    blocks = {"double_blocks": torch.nn.ModuleList(), "single_blocks": torch.nn.ModuleList([SingleBlock(heads)])}
    last = of_comfyui("comfy.ldm.flux.layers.LastLayer", forward=lambda self, x, vec, modulation_dims=None: x)
    return of_comfyui("comfy.ldm.flux.model.Flux", patch_size=2, final_layer=last, **blocks)


FLUX = flux(24)
ALONE, GUIDED = Work.of([1], [[0]]), Work.of([2], [[1, 0]])


@pytest.mark.parametrize(
    ("devices", "model", "work", "plan"),
    [
        (2, FLUX, ALONE, {"ulysses": 2}),
        (2, FLUX, GUIDED, {"cfg": 2}),
        (8, FLUX, GUIDED, {"cfg": 2, "ulysses": 4}),
        (3, FLUX, GUIDED, {"ulysses": 3}),
        (16, FLUX, ALONE, {"ulysses": 8, "ring": 2}),
        (4, FLUX, Work.of([4], [[0]]), {"dp": 4}),
        (4, FLUX, Work.of([4], [[1, 0]]), {"dp": 2, "cfg": 2}),
        (4, FLUX, Work.of([3], [[0]]), {"ulysses": 4}),
        (3, FLUX, Work.of([6], [[1, 0]]), {"dp": 3}),
        (2, FLUX, Work.of([1, 1], [[0], [1]]), {"cfg": 2}),
        (2, FLUX, Work.of([2, 2, 2], [[1, 0]] * 3), {"dp": 2}),
        (3, FLUX, Work.of([2, 2, 2], [[1, 0]] * 3), {"dp": 3}),
        (2, UNKNOWN, GUIDED, {"cfg": 2}),
        (4, UNKNOWN, Work.of([4], [[0]]), {"dp": 4}),
        (3, UNKNOWN, GUIDED, {"dp": 3}),
        (2, UNKNOWN, ALONE, {"dp": 2}),
        (2, COUPLED, GUIDED, {}),
        (2, FLUX, Work(2, True, splits_rows=False), {"ulysses": 2}),
        (2, FLUX, Work(1, splits_tokens=False), {"dp": 2}),
        (4, FLUX, Work(2, True, splits_tokens=False), {"dp": 2, "cfg": 2}),
        (2, FLUX, Work(2, True, splits_tokens=False, splits_rows=False), {}),
    ],
)
def test_an_automatic_plan_follows_from_what_arrives(
    devices: int, model: torch.nn.Module, work: Work, plan: dict[str, int]
) -> None:
    """What can be computed apart is; the rest of the ranks share tokens, where that can be."""
    assert auto_plan(devices, model, work) == ParallelPlan(**plan)


@pytest.mark.parametrize(
    ("works", "plans"),
    [
        ([GUIDED, GUIDED, ALONE, ALONE, ALONE, GUIDED], ["cfg=2"] * 3 + ["ulysses=2"] * 3),
        ([GUIDED, ALONE, GUIDED, ALONE], ["cfg=2"] * 4),
        ([ALONE, GUIDED, GUIDED, GUIDED], ["ulysses=2"] * 4),
    ],
    ids=["guidance ends", "in turns", "guidance begins"],
)
def test_within_a_sampling_a_plan_goes_neither_to_nor_fro(works: list[Work], plans: list[str]) -> None:
    """It gives way once to one that leaves no rank idle; the next sampling decides anew."""
    run = PlanOfRun(lambda work: SimpleNamespace(plan=auto_plan(2, FLUX, work)))
    found = [(run.follow(work), str(run.plan))[1] for work in works]
    assert found == plans
    run.begin()
    assert run.follow(GUIDED)
    assert run.plan == ParallelPlan(cfg=2)


class Block(torch.nn.Module):
    """One of ComfyUI's Wan, as its spec knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = torch.nn.Identity()
        vars(self.self_attn).update(num_heads=4, head_dim=8)

    def forward(self, x, e, freqs, context, context_img_len=257, transformer_options=None):
        raise NotImplementedError


class OtherBlock(Block):
    def forward(self, x, e, pe, context, context_img_len=257, transformer_options=None):
        raise NotImplementedError


def wan(*blocks: torch.nn.Module, **without: None) -> torch.nn.Module:
    """ComfyUI's class with these blocks. without: parts that it is to lack."""
    model = of_comfyui("comfy.ldm.wan.model.WanModel")
    head = of_comfyui("comfy.ldm.wan.model.Head", forward=lambda self, x, e: x)
    parts = {"blocks": torch.nn.ModuleList(blocks), "head": head, "patch_size": (1, 2, 2)}
    for name, part in {**parts, **without}.items():
        if part is not None:
            setattr(model, name, part)
    return model


def test_a_class_as_its_spec_knows_it_has_its_tokens_shared() -> None:
    model = wan(Block(), Block())
    assert list_spec_mismatches(model) == []
    assert auto_plan(2, model, ALONE) == ParallelPlan(ulysses=2)
    check_module(ParallelPlan(ulysses=2), model)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (wan(Block(), blocks=None), "it has no blocks"),
        (wan(Block(), OtherBlock()), "blocks has no argument freqs; blocks has an argument pe"),
    ],
)
def test_a_class_that_comfyui_has_changed_has_its_batch_shared_alone(model: torch.nn.Module, said: str) -> None:
    """By auto; what asks for its tokens is refused, and says what has changed."""
    assert auto_plan(2, model, GUIDED) == ParallelPlan(cfg=2)
    check_module(auto_plan(2, model, GUIDED), model)
    with pytest.raises(PlanError, match=f"not the one that is known here: {said}"):
        check_module(ParallelPlan(ulysses=2), model)
