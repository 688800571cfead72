"""Finds the pixels of PipeFusion's patches in the latents."""

from __future__ import annotations

import math

import torch

from ...errors import RequestError
from ...groups.mesh_layout import shard_sizes


def patch_regions(
    latents: torch.Tensor, patch_size: tuple[int, ...], patches: int, device: torch.device
) -> list[torch.Tensor]:
    """Returns the latent pixels of each PipeFusion patch, as places in the latents' last dims taken as one.

    A patch is a range of tokens. The result holds indices, not masks: reading by a mask makes the host wait for the
    device.
    patch_size: of the model. Raises RequestError, on every rank alike, for latents that cannot be cut.
    """
    grid = token_grid(latents, patch_size)
    tokens = math.prod(grid)
    if patches > tokens:
        raise RequestError(f"The image has {tokens} tokens and cannot be cut into {patches} patches.", "Use fewer.")
    owner = torch.arange(patches).repeat_interleave(torch.tensor(shard_sizes(tokens, patches))).reshape(grid)
    for dim, side in enumerate(patch_size):
        owner = owner.repeat_interleave(side, dim)
    return [(owner.flatten() == index).nonzero().flatten().to(device) for index in range(patches)]


def token_grid(latents: torch.Tensor, patch_size: tuple[int, ...]) -> list[int]:
    """Returns the number of tokens along each of the latents' last dims. Raises RequestError, on every rank alike, for
    latents that PipeFusion's patches do not divide evenly."""
    if any(size % side for size, side in zip(latents.shape[2:], patch_size, strict=True)):
        shape, sides = ("×".join(map(str, sizes)) for sizes in (latents.shape[2:], patch_size))
        raise RequestError(
            f"PipeFusion cannot cut a latent of {shape}: the model works on patches of {sides}.",
            "Use sizes that are multiples of these, in latent pixels, or a plan without PipeFusion.",
        )
    return [size // side for size, side in zip(latents.shape[2:], patch_size, strict=True)]


def part_of(values: torch.Tensor, region: torch.Tensor | None) -> torch.Tensor:
    """Returns the pixels of a region, (B, C, pixels); or all of them in their own shape."""
    return values if region is None else values.flatten(2)[..., region]


def put_part(values: torch.Tensor, region: torch.Tensor | None, part: torch.Tensor) -> None:
    """Replaces the pixels of a region. values: contiguous."""
    if region is None:
        values.copy_(part)
    else:
        values.view(*values.shape[:2], -1)[..., region] = part
