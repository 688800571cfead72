"""PipeFusion of ComfyUI's own classes by definition, in one process: what parallel runs of them are compared with.

A step after the first `sync_steps` runs the whole model once for each patch, where attention sees the patch's own keys
and values, and those of the others as they were when they last ran; of what comes out, the patch's part is taken. Text
goes with the first patch. Shares with the engine the names in the specs, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from parallel_backend.models import ModelSpec

STEPS = 4
SIGMAS = torch.linspace(0.9, 0.0, STEPS + 1)

Cache = dict[tuple[torch.nn.Module, int], tuple[torch.Tensor, torch.Tensor]]


@contextmanager
def attending(model: torch.nn.Module, spec: ModelSpec, attend: Callable[..., torch.Tensor]) -> Iterator[None]:
    """While entered, `attend(owner, streams, q, k, v, …)` runs where blocks attend over tokens."""
    running: list[tuple[torch.nn.Module, Any]] = []
    calls: dict[torch.nn.Module, int] = {}
    plain, handles = F.scaled_dot_product_attention, []

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not running:
            return plain(q, k, v, *args, **kwargs)
        module, streams = running[-1]
        call = calls[module] = calls.get(module, -1) + 1
        own = streams if isinstance(streams, str) else streams[min(call, len(streams) - 1)]
        return attend((module, call), own, plain, q, k, v, *args, **kwargs)

    for blocks in spec.blocks:
        for block in model.get_submodule(blocks.path).children():
            for path, streams in blocks.attention.items():
                module = block.get_submodule(path)

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


def patches_of(grid: list[int], patches: int) -> torch.Tensor:
    """For each token of the grid, the patch that it falls into."""
    return torch.arange(patches).repeat_interleave(
        torch.tensor([len(part) for part in torch.arange(math.prod(grid)).tensor_split(patches)])
    )


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
    call: Callable[[torch.Tensor, float], torch.Tensor],
    latents: torch.Tensor,
    patch: tuple[int, ...],
    patches: int,
    sync_steps: int,
) -> torch.Tensor:
    """Euler steps over SIGMAS. call: latents and sigma to the model's prediction. patch: of the latents, over their
    last dims."""
    if patches == 1:
        for sigma, following in zip(SIGMAS[:-1].tolist(), SIGMAS[1:].tolist(), strict=True):
            latents = latents + (following - sigma) * call(latents, sigma)
        return latents
    image = spec.image
    assert image
    grid = [size // side for size, side in zip(latents.shape[2:], patch, strict=True)]
    owners = patches_of(grid, patches)
    region = owners.reshape(grid)
    for dim, side in enumerate(patch):
        region = region.repeat_interleave(side, dim)
    cache: Cache = {}

    def prediction(current: int | None, latents: torch.Tensor, sigma: float) -> torch.Tensor:
        def attend(
            owner: Any, streams: str, plain: Callable, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any,
            **kwargs: Any,
        ) -> torch.Tensor:  # fmt: skip
            if current is not None:
                fresh = (key_owners(streams, image, k.shape[2], owners) == current)[:, None]
                k, v = (torch.where(fresh, new, old) for new, old in zip((k, v), cache[owner], strict=True))
            cache[owner] = (k, v)
            return plain(q, k, v, *args, **kwargs)

        with attending(model, spec, attend):
            return call(latents, sigma)

    for step, (sigma, following) in enumerate(zip(SIGMAS[:-1].tolist(), SIGMAS[1:].tolist(), strict=True)):
        for current in [None] if step < sync_steps else range(patches):
            stepped = latents + (following - sigma) * prediction(current, latents, sigma)
            latents = stepped if current is None else torch.where(region == current, stepped, latents)
    return latents
