"""`vae_ranks OUT`:
the cases of vae_cases and diffusers_vaes on all ranks; OUT.safetensors is what every rank gets.

Each rank writes OUT.RANK.json: the most bytes of the large case.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from parallel_backend.groups.collectives import collect
from parallel_backend.groups.mesh import Axis
from parallel_backend.seams.bands.norm import band_group_norm
from parallel_backend.vae import replaced
from parallel_backend.vae.pipeline import PipelineVAE
from tests.support.cases.vaes.diffusers_vaes import VAES, latents_of
from tests.support.cases.vaes.vae_cases import BF16, CASES, LARGE, Case, norm_input
from tests.support.group.footprint import return_freed_memory

SEED = 3  # of the noise that some draw
PART = 1 << 12  # numbers: convolutions of even tiny videos run in parts then


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
    """What the decode gives, and the peak in bytes of weights and activations together. One rank is plain diffusers."""
    memory = PeakMemory()
    vae = case.build()
    if axis.degree > 1:
        PipelineVAE(vae, axis)
    batch, _, width = case.shape
    vae.decode(torch.zeros(batch, case.config["latent_channels"], axis.degree, width // 4))  # libraries warm up
    memory.restart()
    if axis.degree > 1:
        dist.barrier()
    return vae.decode(case.latents()).sample, memory.grown()


def small_cases(axis: Axis) -> dict[str, torch.Tensor]:
    """What every rank gets of every case, and of a norm by itself."""
    results = {}
    for name, case in {**CASES, "bf16": BF16}.items():
        vae = case.build()
        parallel = PipelineVAE(vae, axis)
        latents, image = case.latents().to(case.dtype), case.image().to(case.dtype)
        results[f"{name} decode"] = vae.decode(latents).sample
        results[f"{name} encode"] = vae.encode(image).latent_dist.mode()
        parallel.hooks.remove()
        with torch.inference_mode():
            results[f"{name} alone"] = vae.decode(latents).sample
    for name, vae_case in VAES.items():
        vae = vae_case.build()
        PipelineVAE(vae, axis)
        torch.manual_seed(SEED)
        (results[f"{name} decode"],) = vae.decode(vae_case.latents(), **vae_case.arguments(), return_dict=False)
        results[f"{name} encode"] = latents_of(vae.encode(vae_case.pictures()))
    for name, result in results.items():
        results[name] = result.contiguous()
        dist.broadcast(first := results[name].clone(), 0)
        if not torch.equal(first, results[name]):
            raise SystemExit(f"Rank {axis.index} has another result than rank 0 in {name}.")
    rows = norm_input()
    with torch.inference_mode():
        band = band_group_norm(
            rows.split(axis.sizes(rows.shape[2]), 2)[axis.index].contiguous(), 4, None, None, 1e-5, axis
        )
    normed = collect(band, 2, rows.shape[2], axis)
    if normed is not None:
        results["norm"] = normed
    return results


def on_ranks(out_path: str) -> None:
    return_freed_memory()
    replaced.LARGEST = PART
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    axis = Axis(dist.group.WORLD, world, rank) if world > 1 else Axis(None, 1, 0)
    image, peak = measured_decode(LARGE, axis)
    Path(f"{out_path}.{rank}.json").write_text(json.dumps({"peak": peak}))
    results = {} if world == 1 else small_cases(axis)
    if rank == 0:
        save_file({**results, "large": image.contiguous()}, f"{out_path}.safetensors")
