"""`torchrun -m tests.support.ranks.vae_ranks OUT [LARGE]`:
the cases of vae_cases on all ranks; OUT.safetensors is what rank 0 gets.

Each rank writes OUT.RANK.json: seconds and bytes of the large case. LARGE: JSON of another large case, run alone, and
on GPUs where there is one a rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.elastic.multiprocessing.errors import record

from parallel_backend.groups.collectives import collect, shard
from parallel_backend.groups.mesh import Axis
from parallel_backend.hooks import Hooks
from parallel_backend.vae import BandNorm, ParallelVAE, RowBands
from tests.support.cases.vae_cases import BF16, CASES, LARGE, Case, norm_input
from tests.support.ranks.leaving import leave


class PeakMemory:
    """The most memory that this process had at once since `restart`, beyond what it had when this was made.

    On CPU resident memory, libraries' scratch included (which Linux counts as VmHWM); on CUDA torch's allocations.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = self.read("VmRSS")

    def read(self, field: str) -> int:
        if self.device.type == "cuda":
            peak = field == "VmHWM"
            return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    def restart(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")

    def grown(self) -> int:
        return self.read("VmHWM") - self.before


def measured_decode(case: Case, axis: Axis, device: torch.device) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """What the decode gives, its seconds, and the peak in bytes of weights and activations together."""
    memory = PeakMemory(device)
    vae = ParallelVAE(case.build().to(device), axis)
    weights = sum(parameter.nbytes for parameter in vae.vae.parameters())
    batch, _, width = case.shape
    vae.decode(torch.zeros(batch, case.config["latent_channels"], axis.degree, width // 4))  # libraries warm up
    memory.restart()
    if axis.degree > 1:
        dist.barrier()
    start = time.perf_counter()
    image = vae.decode(case.latents())
    if device.type == "cuda":
        torch.cuda.synchronize()
    return image, {"seconds": time.perf_counter() - start, "peak": memory.grown(), "weights": weights}


def small_cases(axis: Axis) -> dict[str, torch.Tensor]:
    """What rank 0 gets of every case, and of a norm by itself."""
    results = {}
    for name, case in {**CASES, "bf16": BF16}.items():
        vae = ParallelVAE(case.build(), axis)
        images = {"decode": vae.decode(case.latents()), "encode": vae.encode(case.image())}
        with torch.inference_mode():
            images["alone"] = vae.vae.decode(case.latents().to(case.dtype)).sample
        for kind, image in images.items():
            if (image is not None) != (axis.index == 0 or kind == "alone"):
                raise SystemExit("Exactly index 0 shall hold the result.")
            if image is not None:
                results[f"{name} {kind}"] = image.contiguous()
    bands, rows = RowBands(axis), norm_input()
    norm = torch.nn.GroupNorm(4, rows.shape[1])
    BandNorm(norm, bands, Hooks())
    with bands.of(rows.shape[2]), torch.inference_mode():
        normed = collect(norm(shard(rows, 2, axis)), 2, rows.shape[2], axis)
    if normed is not None:
        results["norm"] = normed
    return results


@record
def main(out_path: str, large: str = "") -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if large and torch.cuda.device_count() >= world else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.allow_tf32 = False  # its rounding would hide what the split adds
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    axis = Axis(dist.group.WORLD, world, rank) if world > 1 else Axis(None, 1, 0)
    image, measured = measured_decode(Case(**json.loads(large)) if large else LARGE, axis, device)
    Path(f"{out_path}.{rank}.json").write_text(json.dumps(measured))
    results = {} if large or world == 1 else small_cases(axis)
    if rank == 0:
        save_file({**results, "large": image.cpu().contiguous()}, f"{out_path}.safetensors")
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
