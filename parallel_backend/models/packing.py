"""Packs latents and texts in the form in which pipelines pass them to models that take tokens."""

import math

import torch
import torch.nn.functional as F

from .adapter import Tensors

Grid = tuple[int, int, int]

REFERENCES = tuple(f"reference_latents_{number}" for number in range(1, 9))


def pack(latents: torch.Tensor, conditions: Tensors) -> tuple[torch.Tensor, list[Grid]]:
    """Packs the latents and reference conditions as tokens (B, S, 4C) of patches of 2×2. Returns their grids, too.
    Latents are (B, C, H, W), or (B, C, F, H, W) for video. A grid: frames, rows, columns."""
    images = [latents, *(conditions[name] for name in REFERENCES if name in conditions)]
    videos = [image if image.ndim == 5 else image.unsqueeze(2) for image in images]
    patches = [video.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)) for video in videos]
    grids = [patch.permute(0, 2, 3, 5, 1, 4, 6).flatten(4) for patch in patches]  # B, F, rows, columns, width
    sizes = [(grid.shape[1], grid.shape[2], grid.shape[3]) for grid in grids]
    return torch.cat([grid.flatten(1, 3) for grid in grids], 1), sizes


def unpack(tokens_BSD: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    """Turns the first of these tokens back into latents of this shape."""
    batch, channels, *frames, height, width = latents.shape
    own_BSD = tokens_BSD[:, : math.prod(frames) * height * width // 4]
    patches = own_BSD.reshape(batch, math.prod(frames), height // 2, width // 2, channels, 2, 2)
    return patches.permute(0, 4, 1, 2, 5, 3, 6).reshape(latents.shape)


def without(conditions: Tensors, *names: str) -> Tensors:
    return {name: value for name, value in conditions.items() if name not in names}


def pad_text(conditions: Tensors, mask: str, least: int, needs_mask: bool = False) -> Tensors:
    """Pads the conditions' text to a least number of tokens. `mask`, also a condition, leaves out the new ones.

    It is for blocks that fail, or mistake the image for the text, on a rank without text. A text that is long enough
    stays as it is, also without a mask unless the model needs one, because not every attention kernel takes masks.
    """
    text_BSD = conditions["encoder_hidden_states"]
    missing = max(0, least - text_BSD.shape[1])
    if not missing and (mask in conditions or not needs_mask):
        return conditions
    mask_BS = conditions.get(mask, text_BSD.new_ones(text_BSD.shape[:2]))
    return {
        **conditions,
        "encoder_hidden_states": F.pad(text_BSD, (0, 0, 0, missing)),
        mask: F.pad(mask_BS, (0, missing)),
    }
