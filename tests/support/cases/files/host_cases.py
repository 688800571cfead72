"""Models that files and not folders bring, as tiny ones of ComfyUI's own classes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.support.cases.host.joint import HIDREAM_O1
from tests.support.cases.stock_cases import VIDEO, StockCase, flux, normal, text, wan

LTX_2 = {
    "in_channels": 128, "cross_attention_dim": 64, "attention_head_dim": 16, "num_attention_heads": 4, "num_layers": 2,
    "caption_channels": 24, "audio_in_channels": 128, "audio_cross_attention_dim": 32, "audio_attention_head_dim": 8,
    "audio_num_attention_heads": 4, "connector_attention_head_dim": 8, "connector_num_attention_heads": 3,
}  # fmt: skip


def tokens(last: int) -> Callable[[torch.Generator], torch.Tensor]:
    """A text of 5 to 12 tokens, and the last one."""

    def make(generator: torch.Generator) -> torch.Tensor:
        count = int(torch.randint(5, 13, (1,), generator=generator))
        return torch.cat([torch.randint(11, 99, (1, count), generator=generator), torch.tensor([[last]])], 1)

    return make


def hidream_o1(**others: Callable[[torch.Generator], torch.Tensor]) -> StockCase:
    """Its positive and its negative text have different numbers of tokens, or one number with these others."""
    texts = text(1, 8, text_input_ids=tokens(151673), **others)
    return StockCase(
        "hidream_o1.model.HiDreamO1Transformer", HIDREAM_O1, (1, 3, 96, 160), texts, detected_as="HiDreamO1"
    )


# What the ranks run by ComfyUI's own class.
HOST_CASES = {
    "longcat-image": StockCase(
        "flux.model.Flux",
        flux(vec_in_dim=None, context_in_dim=3584, guidance_embed=False, txt_ids_dims=[1, 2]),
        (1, 16, 9, 12),
        text(7, 3584),
    ),
    "wan-2.1-vace": StockCase(
        "wan.model.VaceWanModel",
        wan(model_type="vace", in_dim=16, num_layers=4, vace_layers=2, vace_in_dim=96),
        VIDEO,
        text(7, 4096, **{"list vace_frames": normal(1, 32, 2, 8, 12), "list vace_mask": normal(1, 64, 2, 8, 12)}),
    ),
    "krea-2": StockCase(
        "krea2.model.SingleStreamDiT",
        {"features": 256, "heads": 2, "kvheads": 1, "layers": 2, "txtdim": 160, "txtlayers": 2, "channels": 16},
        (1, 16, 1, 9, 12),
        text(7, 320),
    ),
    # Its text goes through a part of the model before the first step, and its latents are those of video and of sound.
    "ltx-2": StockCase(
        "lightricks.av_model.LTXAVModel", LTX_2, (1, 128, 3, 5, 7, "|", 1, 8, 11, 16), text(13, 24), metadata=LTX_2
    ),
    "hidream-o1": hidream_o1(),
    # In the call of both texts, the class takes the first one's reference for both.
    "hidream-o1-reference": hidream_o1(**{"list reference_latents": normal(1, 64, 96, 3)}),
}
