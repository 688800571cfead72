"""For models whose head puts patches together to a square image, whatever the shape of the latents."""

import math

import torch
import torch.nn.functional as F

from ..hooks import Hooks


def fill_square(head: torch.nn.Module, hooks: Hooks) -> None:
    """Hooks the model's last layer so that its tokens (B, S, width) are filled up to a square number."""

    def fill(_module: torch.nn.Module, _args: tuple, tokens_BSD: torch.Tensor) -> torch.Tensor:
        tokens = tokens_BSD.shape[1]
        return F.pad(tokens_BSD, (0, 0, 0, (math.isqrt(tokens - 1) + 1) ** 2 - tokens))

    hooks.after(head, fill)


def from_square(square_BCHW: torch.Tensor, patch: int, height: int, width: int) -> torch.Tensor:
    """The square back to patches in token order, and these to an image of the size they are of."""
    if height == width:
        return square_BCHW
    patches = F.unfold(square_BCHW, patch, stride=patch)[..., : (height // patch) * (width // patch)]
    return F.fold(patches, (height, width), patch, stride=patch)
