"""MiniMax H3 as people run it: with keyframes, references and masks, under each way to share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from tests.support.census.rows import Row, equal, habit, ignored

MODEL = "minimax"
PLANS = ({"ulysses": 2}, {"ring": 2}, {"cfg": 2})


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def keyframes() -> dict[str, Any]:
    """The first and the last frame."""
    frames = [{"resolved_frame_index": index, "latent": normal(1, 24, 1, 10, 14)} for index in (0, 38)]
    return {"minimax_keyframes": frames, "minimax_frame_count": 39}


def references() -> dict[str, Any]:
    """A picture, a video with its sound, and a sound."""
    picture = {"kind": "image", "latent_h": 6, "latent_w": 8, "latent": normal(1, 24, 1, 6, 8)}
    sound = {"kind": "audio", "ref_audio_t": 5, "audio_latent": normal(1, 32, 2, 5)}
    video = {
        **{"kind": "video_audio", "latent_t": 2, "latent_h": 6, "latent_w": 8, "latent": normal(1, 24, 2, 6, 8)},
        **{"ref_audio_t": 4, "audio_latent": normal(1, 32, 2, 4)},
    }
    return {"minimax_refs": [picture, video, sound]}


def conditioned(census: Any, row: Row, model: Any, make: Callable[[], dict[str, Any]]) -> list[torch.Tensor]:
    return [census.sample(row, model, **census.texts_with(row, make))]


def masked(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A part of the video and of the sound is kept, each token in a measure of its own."""
    latent = census.latent(row)
    masks = [
        torch.linspace(0.1, 1, part.shape[-1]).expand(1, 1, *part.shape[2:]) for part in latent["samples"].unbind()
    ]
    latent["noise_mask"] = type(latent["samples"])(masks)
    with patch.object(census, "latent", lambda _row: latent):
        return [census.sample(row, model)]


def plain(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    return [census.sample(row, model)]


KINDS = {
    "keyframes": habit(equal(MODEL), conditioned, keyframes),
    "references": habit(equal(MODEL), conditioned, references),
    "masks": habit(equal(MODEL), masked),
}
# Its layout is an object that does not go to the ranks. Its text passes a part of the model before the first step.
ALONE = habit(ignored(MODEL), plain)
H3_ROWS = {
    "a video with its sound": ALONE,
    "a video with its sound, in stages": replace(ALONE, plan={"pipefusion": 2, "patches": 1}),
    **{
        f"a video with its sound, {kind}": replace(row, plan=plan)
        for (kind, row), plan in zip(KINDS.items(), itertools.cycle(PLANS), strict=False)
    },
}
