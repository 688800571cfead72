"""PixArt-alpha (https://arxiv.org/abs/2310.00426) and PixArt-Sigma (https://arxiv.org/abs/2403.04692)."""

from __future__ import annotations

from typing import Any

import torch

from .adapter import Adapter, Config, Tensors, register_adapter, usual_spec
from .dit import BLOCKS


def inputs(config: Config, latents_BCHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """T5 embeddings (B, tokens, width); resolution (B, 2) in pixels and aspect ratio (B, 1), which Sigma ignores."""
    return {
        "hidden_states": latents_BCHW,
        "timestep": timestep_B,
        "encoder_hidden_states": conditions["encoder_hidden_states"],
        "added_cond_kwargs": {name: value for name, value in conditions.items() if name != "encoder_hidden_states"},
    }


register_adapter(
    Adapter(
        usual_spec("PixArtTransformer2DModel", BLOCKS),
        conditions=("encoder_hidden_states", "resolution", "aspect_ratio"),
        widths={"encoder_hidden_states": "caption_channels"},
        inputs=inputs,
        output=lambda config, sample, latents: sample[:, : config["in_channels"]],
    )
)
