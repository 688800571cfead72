"""`torchrun -m tests.support.ranks.cuda.quick_ranks DEVICE OUT`:
a Flux of random weights on these ranks against itself on one, and the links between them. Rank 0 writes each finding to
OUT as a line of JSON, as soon as it has it.

A finding has "kernels", by card what computes attention; "links", what `measure_ranks` says; or "plan", "dtype",
"error", relative to one rank's result, and of the large model "seconds" of a forward and how many times "faster" it is
than one rank's.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from diffusers import FluxTransformer2DModel
from torch.utils._python_dispatch import TorchDispatchMode

from parallel_backend.device import is_accelerator, synchronise, total_bytes
from parallel_backend.groups.mesh import Axis, new_group, start_distributed
from parallel_backend.library import parallelize, unparallelize
from parallel_backend.plan import ParallelPlan
from parallel_backend.rates import measure_ranks
from parallel_backend.seams.kernels.backends import NATIVE, choose_backend
from tests.support.ranks.leaving import leave

SMALL = {"num_layers": 2, "num_single_layers": 2, "num_attention_heads": 8, "attention_head_dim": 64}
LARGE = {"num_layers": 2, "num_single_layers": 4, "num_attention_heads": 24, "attention_head_dim": 128}
LESS = {**LARGE, "num_layers": 1, "num_single_layers": 2}  # 1.5 GB, for small cards
SMALL_CARD = 12 << 30
AXES = {64: (8, 28, 28), 128: (16, 56, 56)}
ROUNDS, ON_CPU = 5, 1
TEXT = {"small": 32, "large": 512}
SIDE = {"small": 16, "large": 64}  # tokens
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
KERNEL = "_scaled_dot_product_"  # how torch's operations of attention begin


class Named(TorchDispatchMode):
    """While entered, notes the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.names.append(func.__name__.partition(".")[0])
        return func(*args, **(kwargs or {}))


def kernel(dtype: torch.dtype, device: torch.device, ring: int) -> str:
    """What computes the large model's attention here under `attention=auto`. If it is torch's own choice, which."""
    head_dim = LARGE["attention_head_dim"]
    backend = choose_backend("auto", device, dtype, head_dim, ring)
    if backend is not NATIVE:
        return backend.name
    query = torch.ones(1, LARGE["num_attention_heads"], SIDE["small"] ** 2, head_dim, dtype=dtype, device=device)
    with torch.no_grad(), Named() as named:  # in inference mode, torch chooses where no mode sees it
        (backend.attend_with_lse if ring > 1 else backend.attend)(query, query, query, None)
    found = next((name.removeprefix(KERNEL) for name in named.names if name.startswith(KERNEL)), "matrix products")
    return f"torch's {found}"


def kernels(device: torch.device) -> list[str]:
    """What computes attention on this rank's card, a line a dtype."""
    card, names = (f"GPU {device.index}", DTYPES) if is_accelerator(device) else (f"rank {dist.get_rank()}", ("fp32",))
    ways = {name: [kernel(DTYPES[name], device, ring) for ring in (1, 2)] for name in names}
    return [f"{card}, {name}: {alone}; under ring {ring}" for name, (alone, ring) in ways.items()]


def build(sizes: dict[str, int], dtype: torch.dtype, device: torch.device) -> FluxTransformer2DModel:
    """The same on every rank."""
    torch.manual_seed(0)
    config = {"in_channels": 64, "joint_attention_dim": 4096, "pooled_projection_dim": 768, "guidance_embeds": True}
    with torch.device(device):
        model = FluxTransformer2DModel(**config, **sizes, axes_dims_rope=AXES[sizes["attention_head_dim"]])
    return model.to(dtype).eval().requires_grad_(False)


def inputs(size: str, rows: int, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    side, text = SIDE[size], TEXT[size]
    places = torch.cartesian_prod(torch.zeros(1), torch.arange(float(side)), torch.arange(float(side)))
    return {
        "hidden_states": noise(rows, side * side, 64), "encoder_hidden_states": noise(rows, text, 4096),
        "pooled_projections": noise(rows, 768), "timestep": torch.full((rows,), 0.5, device=device, dtype=dtype),
        "guidance": torch.full((rows,), 3.5, device=device), "img_ids": places.to(device, dtype),
        "txt_ids": torch.zeros(text, 3, device=device, dtype=dtype), "return_dict": False,
    }  # fmt: skip


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """The median of a forward after two, with all ranks at it."""
    found = []
    for place in range((ROUNDS if is_accelerator(device) else ON_CPU) + 2):
        dist.barrier()
        synchronise(device)
        began = time.perf_counter()
        run()
        synchronise(device)
        if place >= 2:
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def compare(
    sizes: dict[str, int], size: str, plan: ParallelPlan, dtype: torch.dtype, device: torch.device, is_timed: bool
) -> dict[str, Any]:
    model, given = build(sizes, dtype, device), inputs(size, max(1, plan.cfg), dtype, device)
    pipeline = SimpleNamespace(transformer=model)
    with torch.inference_mode():
        alone = model(**given)[0]
        one = seconds(lambda: model(**given), device) if is_timed else 0.0
        parallelize(pipeline, plan)
        together = model(**given)[0]
        found: dict[str, Any] = {"error": float((together - alone).abs().max() / alone.abs().max())}
        if is_timed:
            took = seconds(lambda: model(**given), device)
            found |= {"seconds": took, "faster": one / took}
        unparallelize(pipeline)
    return found


def main(device_type: str, out: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    device = start_distributed(device_type)
    ranks, is_card = dist.get_world_size(), device_type != "cpu"

    def tell(**found: Any) -> None:
        if dist.get_rank() == 0:
            with Path(out).open("a") as file:
                print(json.dumps(found), file=file)

    by_rank: list[list[str]] = [[] for _ in range(ranks)]
    dist.all_gather_object(by_rank, kernels(device))
    tell(kernels=[line for lines in by_rank for line in lines])
    plans = [ParallelPlan()] if ranks == 1 else [ParallelPlan(ulysses=ranks), ParallelPlan(ring=ranks)]
    if ranks == 2:
        plans.append(ParallelPlan(cfg=2))
    for plan in plans if is_card else []:
        tell(plan=str(plan), dtype="fp32", **compare(SMALL, "small", plan, torch.float32, device, False))
    if ranks > 1:
        world = new_group(device)
        dtype = torch.bfloat16 if is_card else torch.float32
        axis = Axis(world, ranks, dist.get_rank())
        tell(links=measure_ranks(axis, device, dtype, new_group(torch.device("cpu"))))
    for plan in plans:
        if is_card:
            sizes = LESS if total_bytes(device) < SMALL_CARD else LARGE
            tell(plan=str(plan), dtype="bf16", **compare(sizes, "large", plan, torch.bfloat16, device, True))
        else:
            tell(plan=str(plan), dtype="fp32", **compare(SMALL, "small", plan, torch.float32, device, True))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
