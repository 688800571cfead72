"""Reference images beside the latents, as ComfyUI's Flux and Qwen-Image place their tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from comfy.ldm.common_dit import pad_to_patch_size

from ...errors import Refused
from .base import Tensors

MOST = 8  # the engine's conditions have so many names
METHODS = ("offset", "index", "uxo")

Place = tuple[int, int, int]


def reference_conditions(references: list[torch.Tensor], patch: tuple[int, int] = (2, 2)) -> Tensors:
    """The engine's conditions of reference latents, filled up to patches. Raises Refused for too many."""
    if len(references) > MOST:
        raise Refused(f"The parallel model takes up to {MOST} reference images, and was given {len(references)}.")
    filled = (pad_to_patch_size(reference, (1,) * (reference.ndim - 4) + patch) for reference in references)
    return {f"reference_latents_{number}": reference for number, reference in enumerate(filled, 1)}


def places(latents: torch.Tensor, references: list[torch.Tensor], method: str) -> Iterator[Place]:
    """Where each reference image begins: (index, row, column), the last two in latent pixels.

    method: the Edit Model Reference Method. Raises Refused for one that is not known.
    """
    if method not in METHODS:
        raise Refused(
            f"The parallel model cannot honour the reference method {method!r}.", f"Use {', '.join(METHODS)}."
        )
    below = beside = 0
    for number, reference in enumerate(references, 1):
        height, width = reference.shape[-2:]
        if method == "index":
            yield number, 0, 0
        elif method == "uxo":
            yield 0, latents.shape[-2] + below, latents.shape[-1] + beside
            below, beside = below + height, beside + width
        else:
            taller = height + below > width + beside
            top, left = (0, beside) if taller else (below, 0)
            yield 1, top, left
            below, beside = max(below, height + top), max(beside, width + left)


def token_ids(image: torch.Tensor, place: Place = (0, 0, 0), centred: bool = False) -> torch.Tensor:
    """(index, row, column) of an image's tokens (S, 3), patches of 2×2. A video's frames count in place of the index.

    centred: rows and columns count from the middle.
    """
    frames = image.shape[2] if image.ndim == 5 else 1
    index, *corner = place
    lines = [torch.arange(frames) if frames > 1 else torch.tensor([index])]
    for size, start in zip(image.shape[-2:], corner, strict=True):
        count = (size + 1) // 2
        lines.append(torch.arange(count) + (start + 1) // 2 - (count // 2 if centred else 0))
    return torch.cartesian_prod(*lines)


def image_ids(
    latents: torch.Tensor, references: list[torch.Tensor], method: str, centred: bool = False
) -> torch.Tensor:
    """The places of all image tokens, the latents' and then the references', for each row of the batch (B, S, 3)."""
    found = [token_ids(latents, centred=centred)]
    for reference, place in zip(references, places(latents, references, method), strict=True):
        found.append(token_ids(reference, place, centred))
    return torch.cat(found).expand(len(latents), -1, -1)
