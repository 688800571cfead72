"""On one GPU: every family in bf16, with each attention kernel that the machine has, and with compiled blocks; and
what parking frees."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from parallel_backend.errors import PlanError
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ATTENTION, ParallelPlan
from parallel_backend.transformer import ParallelTransformer
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import FAMILIES, UNEVEN
from worker.host.client import WorkerGroup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none here"),
]
BF16_TOLERANCE = 2e-2
WORSE_THAN_PLAIN = 1.5  # times plain bf16's own distance from fp32
DIT = FAMILIES["dit"]
# 310 MB in fp32.
WIDE = replace(DIT, config={**DIT.config, "num_attention_heads": 16, "attention_head_dim": 64, "num_layers": 4})
NEAR_NOTHING = 0.1  # of the weights


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


@pytest.fixture
def wide(tmp_path: Path) -> ModelSource:
    files = (str(WIDE.save(tmp_path) / "diffusion_pytorch_model.safetensors"),)
    return ModelSource(WIDE.model_class, WIDE.config, files)


def test_a_parked_model_is_pinned_in_ram_alone_and_predicts_the_same_after(one_rank: None, wide: ModelSource) -> None:
    device = torch.device("cuda", 0)
    before = torch.cuda.memory_allocated(device)
    transformer = ParallelTransformer.load(wide, build_mesh(ParallelPlan(), device))
    right = transformer(*WIDE.inputs(2, 8, 8))
    weights = sum(parameter.nbytes for parameter in transformer.model.parameters())
    began = time.perf_counter()
    transformer.parking.take()
    parked = time.perf_counter()
    assert torch.cuda.memory_allocated(device) - before < NEAR_NOTHING * weights
    assert all(slab.is_pinned() for slab in transformer.parking.slabs)
    restoring = time.perf_counter()
    transformer.parking.restore()
    restored = time.perf_counter()
    print(f"{weights >> 20} MiB parked in {parked - began:.3f} s, restored in {restored - restoring:.3f} s")
    assert transformer(*WIDE.inputs(2, 8, 8)).equal(right)


def nothing() -> None:
    pass


def test_a_parked_group_leaves_the_gpu_to_others_until_it_is_used(
    own_ranks: None, wide: ModelSource, tmp_path: Path
) -> None:
    group, plan = WorkerGroup("cuda", tmp_path / "logs"), ParallelPlan()

    def predict() -> torch.Tensor:
        group.load(wide.to_json(), plan.to_json(), plan.world_size, nothing)
        return group.forward(*WIDE.inputs(2, 8, 8), nothing)

    try:
        right, weights = predict(), Path(wide.files[0]).stat().st_size
        assert group.device_bytes() >= weights
        free, _ = torch.cuda.mem_get_info()
        group.park()
        assert group.status()["state"] == "parked"
        assert group.device_bytes() < NEAR_NOTHING * weights
        assert torch.cuda.mem_get_info()[0] - free > (1 - NEAR_NOTHING) * weights
        assert predict().equal(right)
        assert group.status()["counts"]["load"] == 1
    finally:
        group.stop()
