"""What the attention test and its ranks share: streams that do not divide, and masks."""

from __future__ import annotations

import torch

STREAMS = ("encoder_hidden_states", "hidden_states")
LENGTHS = {"encoder_hidden_states": 5, "hidden_states": 22}
TOKENS = sum(LENGTHS.values())
BATCH, HEADS, HEAD_DIM = 2, 4, 8
PATCHES = 3


def plans(world: int) -> dict[str, dict[str, int]]:
    """The sequence-parallel plans of a world size, by name."""
    every = {"ulysses": {"ulysses": world}, "ring": {"ring": world}}
    return {**every, "usp": {"ring": 2, "ulysses": 2}} if world == 4 else every


def qkv() -> torch.Tensor:
    """Query, key and value of all tokens, (3, B, H, S, D)."""
    return torch.randn(3, BATCH, HEADS, TOKENS, HEAD_DIM, generator=torch.Generator().manual_seed(0))


def masks() -> dict[str, torch.Tensor | None]:
    """By name. "padding" hides the last text tokens; "block" hides more than one rank's keys from one image."""
    generator = torch.Generator().manual_seed(1)
    padding = torch.ones(BATCH, 1, 1, TOKENS, dtype=torch.bool)
    padding[0, ..., 3:5] = False
    block = padding.clone()
    block[1, ..., 4:] = False
    bias = torch.randn(BATCH, HEADS, TOKENS, TOKENS, generator=generator)
    return {"none": None, "padding": padding, "block": block, "bias": bias, "square": bias[:1, :1] > 0}


MASKS = masks()
