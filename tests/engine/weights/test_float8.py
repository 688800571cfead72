"""Weights in fp8 stay in fp8 in a rank's memory, and count as what the files mean by them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.transformer import ParallelTransformer
from parallel_backend.weights.adapters import Addition
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import FAMILIES
from tests.support.cases.single_file_cases import FP8, cast, scaled_fp8

FAMILY = FAMILIES["sd3.5"]
LAYER = "transformer_blocks.1.ff.net.2.weight"


def load(path: Path) -> ParallelTransformer:
    plan = ParallelPlan()
    axes = dict.fromkeys((*plan.degrees(), "batch", "sequence"), Axis(None, 1, 0))
    source = ModelSource(FAMILY.model_class, FAMILY.config, (str(path),))
    return ParallelTransformer.load(source, Mesh(plan, torch.device("cpu"), axes, None))


@pytest.fixture(params=["plain", "scaled"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Path]:
    """A model in fp8, and the same values in fp32."""
    weights = FAMILY.build().state_dict()
    stored = cast(weights, FP8) if request.param == "plain" else scaled_fp8(weights, "weight_scale")
    meant = {}
    for name in weights:
        scale = stored.get(f"{name.removesuffix('.weight')}.weight_scale", torch.tensor(1.0))
        meant[name] = stored[name].float() * scale
    written = {"fp8": stored, "fp32": meant}
    for name, tensors in written.items():
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, tmp_path / name)
    return {name: tmp_path / name for name in written}


@pytest.mark.filterwarnings("error")
def test_blocks_hold_fp8_and_compute_the_same(files: dict[str, Path]) -> None:
    latents, timestep, conditions = FAMILY.inputs(2, 16, 16)
    kept, cast_up = load(files["fp8"]), load(files["fp32"])
    held = {name: tensor.dtype for name, tensor in kept.model.state_dict().items()}
    assert {name for name, dtype in held.items() if dtype == FP8} == kept.float8
    assert sum(kept.model.get_parameter(name).numel() for name in kept.float8) > 0.5 * FAMILY.build().num_parameters()
    predictions = [model(latents, timestep, conditions) for model in (kept, cast_up)]
    assert torch.equal(*predictions)


def test_an_addition_is_not_rounded_to_fp8_and_leaves_no_trace(files: dict[str, Path]) -> None:
    latents, timestep, conditions = FAMILY.inputs(2, 16, 16)
    shape = FAMILY.build().state_dict()[LAYER].shape
    up = 1e-3 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    addition = Addition(LAYER, row=0, up_row=0, count=shape[0], scale=0.7, up="up")
    models = [load(files[kind]) for kind in ("fp8", "fp32")]
    before = [model(latents, timestep, conditions) for model in models]
    for model in models:
        model.adapt([addition], {"up": up})
    changed = [model(latents, timestep, conditions) for model in models]
    assert torch.equal(*changed) and not torch.equal(changed[0], before[0])
    for model in models:
        model.adapt([], {})
    assert models[0].model.get_parameter(LAYER).dtype == FP8
    assert torch.equal(models[0](latents, timestep, conditions), before[0])
