"""For models whose head assembles patches to a square image, whatever the shape of the latents."""

import math

import torch
import torch.nn.functional as F

from ..hooks import Hooks


def fill_square(head: torch.nn.Module, hooks: Hooks) -> None:
    """Hooks the model's last layer so that its tokens (B, S, width) are padded to a square number."""

    def fill(_module: torch.nn.Module, _args: tuple, tokens_BSD: torch.Tensor) -> torch.Tensor:
        tokens = tokens_BSD.shape[1]
        return F.pad(tokens_BSD, (0, 0, 0, (math.isqrt(tokens - 1) + 1) ** 2 - tokens))

    hooks.after(head, fill)


def from_square(square_BCHW: torch.Tensor, patch: int, height: int, width: int) -> torch.Tensor:
    """Turns the square back into patches in token order, and these into an image of the given size."""
    if height == width:
        return square_BCHW
    patches = F.unfold(square_BCHW, patch, stride=patch)[..., : (height // patch) * (width // patch)]
    return F.fold(patches, (height, width), patch, stride=patch)
