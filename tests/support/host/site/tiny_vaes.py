"""ComfyUI has one size of MiniMax-H3's VAEs. With these changes it builds tiny ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

VIDEO, AUDIO = "comfy.ldm.minimax.vae", "comfy.ldm.minimax.audio_vae"


def shrink_video(module: Any) -> None:
    """Tiles have 4 latent rows and columns."""
    module.ViT3DDecoder = partial(module.ViT3DDecoder, num_layers=2, heads=2, dim_head=32)
    module.MiniMaxH3VideoVAE = partial(
        module.MiniMaxH3VideoVAE,
        **{"ch": 32, "ch_mult": (1,) * 6, "num_res_blocks": 1, "tile_size": 64, "tile_overlap_min": 16},
    )


def shrink_audio(module: Any) -> None:
    module.MiniMaxH3AudioVAE = partial(module.MiniMaxH3AudioVAE, encoder_dim=4, latent_dim=128, decoder_dim=128)


CHANGES: dict[str, Callable[[Any], None]] = {VIDEO: shrink_video, AUDIO: shrink_audio}
