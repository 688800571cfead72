"""On one GPU: every family in bf16, with each attention kernel that the machine has, and with compiled blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from parallel_backend.errors import PlanError
from parallel_backend.loading import ModelSource
from parallel_backend.mesh import build_mesh
from parallel_backend.plan import ATTENTION, ParallelPlan
from parallel_backend.transformer import ParallelTransformer
from tests.families import FAMILIES, UNEVEN

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none here"),
]
BF16_TOLERANCE = 2e-2
WORSE_THAN_PLAIN = 1.5  # times plain bf16's own distance from fp32


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A group of one rank, on the GPU."""
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def distance(result: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((result.float().cpu() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled blocks"])
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_bf16_is_as_near_to_fp32_as_plain_diffusers(
    name: str, attention: str, compiled: bool, one_rank: None, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    if attention == "sage":
        pytest.skip("sage computes in 8 bits and promises less")
    latents, timestep, conditions = family.inputs(*family.shapes[UNEVEN])
    wanted = family.reference(family.build(), latents, timestep, conditions)
    device = torch.device("cuda", 0)
    on_gpu = {key: value.to(device) for key, value in conditions.items()}
    halved = {key: value.bfloat16() if value.is_floating_point() else value for key, value in on_gpu.items()}
    plain = family.reference(
        family.build().to(device, torch.bfloat16), latents.to(device, torch.bfloat16), timestep.to(device), halved
    )
    files = (str(family.save(tmp_path) / "diffusion_pytorch_model.safetensors"),)
    source = ModelSource(family.model_class, family.config, files, "bf16")
    try:
        transformer = ParallelTransformer.load(source, build_mesh(ParallelPlan(attention=attention), device))
    except PlanError as refusal:
        pytest.skip(str(refusal))
    if compiled:
        transformer.model.compile_repeated_blocks()
    result = transformer(latents, timestep, conditions)
    assert distance(result, wanted) <= max(BF16_TOLERANCE, WORSE_THAN_PLAIN * distance(plain, wanted))
