"""`vae_ranks`: the cases of vae_cases and diffusers_vaes on all ranks; rank 0 tells what every rank gets."""

from __future__ import annotations

import torch
import torch.distributed as dist

from parallel_backend.groups.collectives import collect
from parallel_backend.groups.mesh import Axis
from parallel_backend.hooks import Hooks
from parallel_backend.seams.bands.norm import band_group_norm
from parallel_backend.vae import diffusers_classes
from parallel_backend.vae.pipeline import PipelineVAE
from tests.support.cases.vaes.diffusers_vaes import VAES, latents_of
from tests.support.cases.vaes.vae_cases import BF16, CASES, norm_input

SEED = 3  # of the noise that some draw
PART = 1 << 12  # numbers: convolutions of even tiny videos run in parts then


def results_of(axis: Axis) -> dict[str, torch.Tensor]:
    """What every rank gets of every case, and of a norm by itself."""
    results = {}
    for name, case in {**CASES, "bf16": BF16, **VAES}.items():
        vae = case.build()
        hooks = Hooks()
        PipelineVAE(vae, axis, hooks)
        torch.manual_seed(SEED)
        (results[f"{name} decode"],) = vae.decode(case.latents(), **case.arguments(), return_dict=False)
        results[f"{name} encode"] = latents_of(vae.encode(case.pictures()))
        if name in CASES:
            hooks.close()
            results[f"{name} alone"] = vae.decode(case.latents()).sample
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


def on_ranks() -> tuple[None, dict[str, torch.Tensor]]:
    diffusers_classes.LARGEST = PART
    results = results_of(Axis(dist.group.WORLD, dist.get_world_size(), dist.get_rank()))
    return None, {} if dist.get_rank() else results
