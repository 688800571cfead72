"""PipeFusion by definition, in one process: the oracle that every parallel run is compared with.

A step after the first `sync_steps` runs the whole model once for each patch, where attention sees the patch's own keys
and values, and those of the others as they were when they last ran; of what comes out, the patch's part is taken.
Patches are ranges of image tokens, as even as can be; text goes with the first one. Shares with the engine the names in
the specs (which `spec_probe` compares with the classes), and nothing else.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from parallel_backend.models import ModelSpec

Cache = dict[Any, tuple[torch.Tensor, torch.Tensor]]
Call = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, Any], torch.Tensor]


@contextmanager
def attending(model: torch.nn.Module, spec: ModelSpec, attend: Callable[..., torch.Tensor]) -> Iterator[None]:
    """While entered, `attend(owner, streams, plain, q, k, v, …)` runs where blocks attend over tokens."""
    running: list[tuple[torch.nn.Module, Any]] = []
    calls: dict[torch.nn.Module, int] = {}
    plain, handles = F.scaled_dot_product_attention, []

    def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not running:
            return plain(query, key, value, *args, **kwargs)
        module, streams = running[-1]
        call = calls[module] = calls.get(module, -1) + 1
        own = streams if isinstance(streams, str) else streams[min(call, len(streams) - 1)]
        return attend((module, call), own, plain, query, key, value, *args, **kwargs)

    for blocks in spec.blocks:
        for block in model.get_submodule(blocks.path).children():
            inside = dict(block.named_modules())
            for module, streams in ((inside.get(path), streams) for path, streams in blocks.attention.items()):
                if module is None:  # some blocks of a list have one attention less
                    continue

                def enter(module: torch.nn.Module, _args: Any, streams: Any = streams) -> None:
                    calls.pop(module, None)
                    running.append((module, streams))

                handles.append(module.register_forward_pre_hook(enter))
                handles.append(module.register_forward_hook(lambda *_: running.pop() and None))
    try:
        with mock.patch.object(F, "scaled_dot_product_attention", sdpa):
            yield
    finally:
        for handle in handles:
            handle.remove()


def key_owners(streams: str, image: str, keys: int, owners: torch.Tensor) -> torch.Tensor:
    """For each key of joined streams, the patch that it goes with."""
    parts, text = streams.split("+"), torch.zeros(keys - len(owners), dtype=torch.long)
    if image not in parts:
        return torch.zeros(keys, dtype=torch.long)
    return torch.cat([owners, text] if parts[0] == image else [text, owners])


@torch.inference_mode()
def sample(
    model: torch.nn.Module,
    spec: ModelSpec,
    call: Call,
    scheduler: Any,
    latents: torch.Tensor,
    conditions: Any,
    negative: Any = None,
    guidance: float = 1.0,
    patches: int = 1,
    sync_steps: int | None = None,
    *,
    patch: Sequence[int],
    timestep_scale: float = 1.0,
) -> torch.Tensor:
    """Denoises with stale keys and values; with `sync_steps` None, exactly. Guidance runs its two branches in turn.

    call: the model, latents, timesteps and conditions to a prediction. scheduler: with its timesteps set. patch: latent
    pixels a token, over the latents' last dims. timestep_scale: of what the call gets to the scheduler's timesteps.
    """
    grid = [size // side for size, side in zip(latents.shape[2:], patch, strict=True)]
    lengths = torch.tensor([len(part) for part in torch.arange(math.prod(grid)).tensor_split(patches)])
    owners = torch.arange(patches).repeat_interleave(lengths)  # of each token, the patch that it falls into
    region = owners.reshape(grid)
    for dim, side in enumerate(patch):
        region = region.repeat_interleave(side, dim)
    schedulers = [copy.deepcopy(scheduler) for _ in range(patches)]
    branches = [conditions] if negative is None else [conditions, negative]
    caches: list[Cache] = [{} for _ in branches]

    def attending_to(cache: Cache, current: int | None) -> Callable[..., torch.Tensor]:
        """current: the patch whose keys and values are fresh; None for all."""

        def attend(owner: Any, streams: str, plain: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
            if current is not None:
                fresh = (key_owners(streams, spec.image, k.shape[2], owners) == current)[:, None]
                k, v = (torch.where(fresh, new, old) for new, old in zip((k, v), cache[owner], strict=True))
            cache[owner] = (k, v)
            return plain(q, k, v, *args, **kwargs)

        return attend

    def predict(step: int, inputs: torch.Tensor, current: int | None) -> torch.Tensor:
        timestep, outputs = float(scheduler.timesteps[step]) * timestep_scale, []
        for cache, given in zip(caches, branches, strict=True):
            is_exact = sync_steps is None
            with nullcontext() if is_exact else attending(model, spec, attending_to(cache, current)):
                outputs.append(call(model, inputs, torch.full((len(inputs),), timestep), given))
        return outputs[0] if negative is None else outputs[1] + guidance * (outputs[0] - outputs[1])

    def advance(patch: int, prediction: torch.Tensor, step: int, now: torch.Tensor) -> torch.Tensor:
        return schedulers[patch].step(prediction, scheduler.timesteps[step], now, return_dict=False)[0]

    def joined(parts: list[torch.Tensor]) -> torch.Tensor:
        """Of each patch's whole latents, its own pixels."""
        whole = parts[0]
        for number, part in enumerate(parts):
            whole = torch.where(region == number, part, whole)
        return whole

    for step, timestep in enumerate(scheduler.timesteps):
        inputs = latents
        if hasattr(scheduler, "scale_model_input"):
            inputs = joined([each.scale_model_input(latents, timestep) for each in schedulers])
        if sync_steps is None or step < sync_steps:
            prediction = predict(step, inputs, None)
            latents = joined([advance(number, prediction, step, latents) for number in range(patches)])
        else:
            latents = joined(
                [advance(number, predict(step, inputs, number), step, latents) for number in range(patches)]
            )
    return latents
