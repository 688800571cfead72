"""What the attention test and its ranks share: streams and heads that do not divide, and masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

STREAMS = ("encoder_hidden_states", "hidden_states")
LENGTHS = {"encoder_hidden_states": 5, "hidden_states": 22}
TOKENS = sum(LENGTHS.values())
BATCH, HEAD_DIM = 2, 8
PATCHES = 3
STEPS, CHANGE = 6, 0.05  # of what travels as differences: the change from step to step
MASKS = ("none", "padding", "block", "bias", "square")


@dataclass(frozen=True)
class Case:
    """A plan, and the attention under it. parts: into how many the exchange is cut. kernel: the attention backend."""

    plan: dict[str, Any]
    heads: int = 4
    kv_heads: int = 4
    parts: int = 1
    kernel: str = "native"

    def is_lossy(self, mask_name: str = "none") -> bool:
        """Whether 8 bits are in use. Kernels that compute with them take no masks, so masked attention is torch's."""
        return self.kernel != "native" and mask_name == "none"


# By the number of ranks.
CASES: dict[int, dict[str, Case]] = {
    2: {
        "ulysses": Case({"ulysses": 2}, parts=2),
        "ulysses, 5 heads": Case({"ulysses": 2}, 5, 5, parts=3),
        "ulysses, 6 heads on 3": Case({"ulysses": 2}, 6, 3, parts=2),
        "ring": Case({"ring": 2}),
        "ring, 6 heads on 2": Case({"ring": 2}, 6, 2),
        "ring, sage": Case({"ring": 2}, kernel="sage"),
        "ulysses, int4": Case({"ulysses": 2, "exchange_dtype": "int4"}, 6, 2, parts=2),
        "ulysses, of unlike speed": Case({"ulysses": 2, "speeds": [1, 0.4]}, 5, 5, parts=2),
    },
    3: {
        "ulysses, 5 heads": Case({"ulysses": 3}, 5, 5, parts=2),
        "ulysses, 6 heads on 2": Case({"ulysses": 3}, 6, 2),
        "ulysses, nothing for one": Case({"ulysses": 3, "speeds": [4, 0.001, 2]}, 7, 7, parts=3),
        "ring, nothing for one": Case({"ring": 3, "speeds": [4, 0.001, 2]}),
        "ring, of unlike speed": Case({"ring": 3, "speeds": [3, 1, 2]}),
    },
    4: {
        "ulysses": Case({"ulysses": 4}),
        "ulysses, 6 heads": Case({"ulysses": 4}, 6, 6, parts=2),
        "ulysses, 10 heads on 5": Case({"ulysses": 4}, 10, 5),
        "ring": Case({"ring": 4}),
        "usp, sage, 6 heads on 2": Case({"ring": 2, "ulysses": 2}, 6, 2, parts=2, kernel="sage"),
        "usp, 5 heads": Case({"ring": 2, "ulysses": 2}, 5, 5, parts=3),
        "usp, 6 heads on 2": Case({"ring": 2, "ulysses": 2}, 6, 2, parts=2),
        "usp, of unlike speed": Case({"ring": 2, "ulysses": 2, "speeds": [1, 0.25, 0.5, 1]}, 6, 2, parts=2),
    },
    8: {
        "ulysses, 15 heads": Case({"ulysses": 8}, 15, 15, parts=2),
        "usp, 6 heads on 3": Case({"ring": 2, "ulysses": 4}, 6, 3, parts=2),
    },
}


def qkv(case: Case, step: int = 0) -> tuple[torch.Tensor, ...]:
    """Query, key and value of all tokens, (B, H, S, D). They change a little from step to step."""
    heads = (case.heads, case.kv_heads, case.kv_heads)
    found = [torch.zeros(BATCH, count, TOKENS, HEAD_DIM) for count in heads]
    for seed in range(step + 1):
        generator = torch.Generator().manual_seed(seed)
        found = [each + torch.randn(each.shape, generator=generator) * (CHANGE if seed else 1) for each in found]
    return tuple(found)


def mask(name: str, case: Case) -> torch.Tensor | None:
    """ "padding" hides the last text tokens; "block" hides more than one rank's keys from one image."""
    padding = torch.ones(BATCH, 1, 1, TOKENS, dtype=torch.bool)
    padding[0, ..., 3:5] = False
    block = padding.clone()
    block[1, ..., 4:] = False
    bias = torch.randn(BATCH, case.heads, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1))
    return {"none": None, "padding": padding, "block": block, "bias": bias, "square": bias[:1, :1] > 0}[name]
