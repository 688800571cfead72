"""`host.host_vae_ranks MEASURED`:
decodes and encodes with every VAE of ComfyUI's own on all ranks. Returns the most bytes that each rank held of the
large case, or of a VAE that cuts tiles how many each rank computed; and what rank 0 gets. MEASURED: by VAE, the
direction of which these bytes are.

ComfyUI, which COMFYUI_PATH names, is imported with this, and so once for all ranks that are forked off one process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import Axis
from parallel_backend.vae.classes import class_of
from parallel_backend.vae.parallel import ParallelVAE
from tests.support.cases.vaes.host_vaes import VAES, HostVae
from tests.support.fakes.tally import Tally
from tests.support.ranks import host_ranks  # noqa: F401 (imports ComfyUI)

import comfy.ldm.lightricks.vae.causal_video_autoencoder as ltx  # isort: skip
import comfy.sd  # noqa: F401 (every class that there is)  # isort: skip

SEED = 3  # of the noise that some draw
CHUNK = 1 << 16  # bytes: LTX's cut even tiny videos then


def results_of(case: HostVae, axis: Axis) -> dict[str, torch.Tensor]:
    """What rank 0 gets; of one rank also what the model gives with nothing of ours on it."""
    model, results = case.made(), {}
    parallel = ParallelVAE(model, axis, case.sizes)
    for name, (direction, given) in case.calls().items():
        torch.manual_seed(SEED)
        result = getattr(parallel, direction)(given)
        if (result is not None) != (axis.index == 0):
            raise SystemExit("Exactly index 0 shall hold the result.")
        if result is not None:
            results[name] = result
    for name, (direction, given) in case.calls().items() if axis.degree == 1 else ():
        torch.manual_seed(SEED)
        with torch.inference_mode():
            results[f"plain {name}"] = getattr(model, direction)(given)
    return results


def tiles_of(case: HostVae, axis: Axis) -> dict[str, int]:
    """By call, how many tiles this rank computed, and how often it could be told that the call was given up."""
    model, counts = case.made(), dict[str, int]()

    def count(name: str) -> None:
        counts[name] = counts.get(name, 0) + 1

    parallel = ParallelVAE(model, axis, case.sizes)
    for name, (direction, given) in case.calls().items():
        first = {"decode": model.decoder.x_embedder, "encode": model.encoder.conv_in}[direction]
        hook = first.register_forward_hook(lambda *_, name=name: count(f"tiles: {name}"))
        getattr(parallel, direction)(given, partial(count, f"checks: {name}"))
        hook.remove()
    return counts


def most_bytes(run: Callable[[torch.Tensor], Any], given: torch.Tensor, model: torch.nn.Module) -> int:
    """The most bytes that this rank held in a call, beside weights and input."""
    tally = Tally(of_cpu=True)
    for each in (given, *model.parameters()):
        tally.hold(each)
    before = tally.live
    with tally, torch.inference_mode():
        run(given)
    return tally.peak - before


def of_large(case: HostVae, axis: Axis, direction: str) -> int:
    """Of the large case; beside the whole result, which rank 0 has in the host's memory."""
    parallel = ParallelVAE(case.made(), axis, case.sizes)
    with patch("parallel_backend.vae.parallel.collect", lambda *_: None):
        return most_bytes(getattr(parallel, direction), case.large()[direction], parallel.vae)


def on_ranks(measured: dict[str, str]) -> tuple[dict[str, dict[str, int]], dict[str, torch.Tensor]]:
    ltx.get_max_chunk_size = lambda _device: CHUNK
    rank, world = dist.get_rank(), dist.get_world_size()
    axis = Axis(dist.group.WORLD, world, rank) if world > 1 else Axis(None, 1, 0)
    results, found = {}, {}
    for name, case in VAES.items():
        results |= {f"{name}: {call}": result for call, result in results_of(case, axis).items()}
        if class_of(case.made()).tiles:
            found[name] = tiles_of(case, axis)
        if name in measured:
            found[name] = {"most": of_large(case, axis, measured[name])}
    return found, results
