"""One forward of a step of the denoising loop. It imports no process groups: another process may describe it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Pass(NamedTuple):
    """One of the forwards of a sampling's step. branches: of its rows, one per batch of latents in order: 0 for cond, 1
    for uncond. kwargs: the model's arguments other than latents and timesteps. channels: a tensor that is appended to
    the latents' own channels, and not sampled."""

    branches: tuple[int, ...]
    kwargs: dict[str, Any]
    channels: Any = None
