"""What the attention test and its ranks share: streams that do not divide, and masks."""

from __future__ import annotations

from typing import Any

import torch

STREAMS = ("encoder_hidden_states", "hidden_states")
LENGTHS = {"encoder_hidden_states": 5, "hidden_states": 22}
TOKENS = sum(LENGTHS.values())
BATCH, HEADS, HEAD_DIM = 2, 4, 8
PATCHES = 3


def plans(world: int) -> dict[str, dict[str, Any]]:
    """The sequence-parallel plans of a world size, by name."""
    every: dict[str, dict[str, Any]] = {"ulysses": {"ulysses": world}, "ring": {"ring": world}}
    if world == 4:
        every["usp"] = {"ring": 2, "ulysses": 2}
    unlike = {name: {**plan, "speeds": [1, 0.25, 0.5, 1][:world]} for name, plan in every.items()}
    return every | {f"{name}, unlike": plan for name, plan in unlike.items()}


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
