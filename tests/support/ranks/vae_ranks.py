"""`torchrun -m tests.support.ranks.vae_ranks OUT`:
the cases of vae_cases on all ranks; OUT.safetensors is what rank 0 gets.

Each rank writes OUT.RANK.json: the most bytes of the large case.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.elastic.multiprocessing.errors import record

from parallel_backend.groups.collectives import collect, shard
from parallel_backend.groups.mesh import Axis
from parallel_backend.seams.bands.norm import band_group_norm
from parallel_backend.vae.parallel import ParallelVAE
from tests.support.cases.vae_cases import BF16, CASES, LARGE, Case, norm_input
from tests.support.group.footprint import return_freed_memory
from tests.support.ranks.leaving import leave


class PeakMemory:
    """The most resident memory that this process had at once since `restart`, libraries' scratch included, beyond what
    it had when this was made."""

    def __init__(self) -> None:
        self.before = self.read("VmRSS")

    def read(self, field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    def restart(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")

    def grown(self) -> int:
        return self.read("VmHWM") - self.before


def measured_decode(case: Case, axis: Axis) -> tuple[torch.Tensor | None, int]:
    """What the decode gives, and the peak in bytes of weights and activations together."""
    memory = PeakMemory()
    vae = ParallelVAE(case.build(), axis)
    batch, _, width = case.shape
    vae.decode(torch.zeros(batch, case.config["latent_channels"], axis.degree, width // 4))  # libraries warm up
    memory.restart()
    if axis.degree > 1:
        dist.barrier()
    return vae.decode(case.latents()), memory.grown()


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
    rows = norm_input()
    with torch.inference_mode():
        band = band_group_norm(shard(rows, 2, axis), 4, None, None, 1e-5, axis)
    normed = collect(band, 2, rows.shape[2], axis)
    if normed is not None:
        results["norm"] = normed
    return results


@record
def main(out_path: str) -> None:
    return_freed_memory()
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    axis = Axis(dist.group.WORLD, world, rank) if world > 1 else Axis(None, 1, 0)
    image, peak = measured_decode(LARGE, axis)
    Path(f"{out_path}.{rank}.json").write_text(json.dumps({"peak": peak}))
    results = {} if world == 1 else small_cases(axis)
    if rank == 0:
        save_file({**results, "large": image.contiguous()}, f"{out_path}.safetensors")
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
