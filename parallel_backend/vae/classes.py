"""Looks up what is known of a VAE's class.

An unlisted class or module is refused: it may read rows outside of its band in a way that no handler of `seams/bands`
knows. Tests compare every class with its run in one process (`tests/engine/vae/`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..errors import RequestError
from ..models.bands import VAES, VaeClass


def class_of(vae: torch.nn.Module, classes: Mapping[str, VaeClass] = VAES, advice: str = "") -> VaeClass:
    """Returns the description of a VAE's class. Raises RequestError with the advice if it cannot be split, and names
    the unknown part."""
    kind = type(vae)
    found = classes.get(f"{kind.__module__}.{kind.__qualname__}")
    if found is None:
        raise RequestError(
            f"A VAE of the class {kind.__name__} ({kind.__module__}) cannot be split over ranks.", advice
        )
    for name, module in () if found.tiles else vae.named_modules():
        kind = type(module)
        if kind.__qualname__ not in found.modules.get(kind.__module__, ()):
            raise RequestError(
                f"The VAE's layer {name} is a {kind.__qualname__} of {kind.__module__}, and ParallelDiT does not know "
                "how to split that over ranks.",
                advice,
            )
    return found
