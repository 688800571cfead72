"""What one process on plain diffusers predicts, computed once for all that compare with it."""

from __future__ import annotations

from functools import cache

import torch

from tests.support.cases.families import FAMILIES


@cache
def plain_diffusers(family: str, shape: str) -> torch.Tensor:
    """The prediction in fp32 for the family's inputs of this shape."""
    model = FAMILIES[family].build()
    with torch.inference_mode():
        return FAMILIES[family].reference(model, *FAMILIES[family].inputs(*FAMILIES[family].shapes[shape]))


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.float() - expected.float()).norm() / expected.float().norm()).item()
