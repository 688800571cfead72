"""HiDream I1, Lens, JoyImage, PixelDiT, PiD, OmniGen 2, Boogu, Ideogram 4, Ernie-Image."""

from __future__ import annotations

import torch

from tests.support.cases.host.base import BATCH, TEXT, HostCase, always, image, latents, rows, text, text_mask, with_

HIDREAM = {
    "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": 2, "num_single_layers": 2,
    "attention_head_dim": 16, "num_attention_heads": 4, "caption_channels": [24, 32], "text_emb_dim": 20,
    "num_routed_experts": 4, "num_activated_experts": 2, "axes_dims_rope": (8, 4, 4), "max_resolution": (64, 64),
    "llama_layers": [0, 1, 2, 3],
}  # fmt: skip
HIDREAM_O1 = {
    "text_config_overrides": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "rope_dims": [4, 2, 2],
    },
    "vision_config_overrides": {"hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "depth": 1},
}  # fmt: skip
OMNIGEN = {
    "hidden_size": 64, "num_layers": 3, "num_refiner_layers": 2, "num_attention_heads": 4, "num_kv_heads": 2,
    "multiple_of": 16, "axes_dim_rope": (4, 6, 6), "timestep_scale": 1000.0,
}  # fmt: skip
BOOGU = OMNIGEN | {"instruction_feat_dim": 24, "num_double_stream_layers": 2}
LENS = {
    "in_channels": 32, "out_channels": 8, "num_layers": 3, "attention_head_dim": 16, "num_attention_heads": 4,
    "enc_hidden_dim": 24, "axes_dims_rope": (4, 6, 6), "selected_layer_index": (0, 1),
}  # fmt: skip
JOYIMAGE = {
    "in_channels": 16, "hidden_size": 64, "num_attention_heads": 4, "text_dim": 24, "num_layers": 3,
    "rope_dim_list": [4, 6, 6],
}  # fmt: skip
PIXELDIT = {
    "num_groups": 4, "hidden_size": 64, "pixel_hidden_size": 8, "pixel_attn_hidden_size": 32, "pixel_num_groups": 4,
    "patch_depth": 3, "pixel_depth": 2, "patch_size": 8, "txt_embed_dim": 24, "txt_max_length": 32,
}  # fmt: skip
IDEOGRAM = {
    "in_channels": 32, "num_layers": 3, "num_attention_heads": 4, "attention_head_dim": 16, "intermediate_size": 64,
    "adaln_dim": 16, "llm_features_dim": 24, "mrope_section": (4, 2, 2),
}  # fmt: skip
ERNIE = {
    "hidden_size": 64, "num_attention_heads": 4, "num_layers": 3, "ffn_hidden_size": 96, "in_channels": 32,
    "out_channels": 32, "text_in_dim": 24, "rope_axes_dim": (4, 6, 6),
}  # fmt: skip
OMNIGEN_CLASS = "comfy.ldm.omnigen.omnigen2.OmniGen2Transformer2DModel"
BOOGU_CLASS = "comfy.ldm.boogu.model.BooguTransformer2DModel"
IDEOGRAM_CLASS = "comfy.ldm.ideogram4.model.Ideogram4Transformer2DModel"
TOKENS = {"num_tokens": always(TEXT)}


def references(random):
    return [random(BATCH, 16, 10, 8)]


def unified(random):
    """Text and image as one sequence, of which each token has a place on three axes."""
    ids = torch.full((BATCH, TEXT), 5)
    ids[:, -1] = 151673
    return {
        "context": random(BATCH, 1, 8),
        "input_ids": ids,
        "position_ids": torch.arange(TEXT + 35).expand(BATCH, 3, -1),
        "ar_len": TEXT - 1,
    }


CASES: dict[str, HostCase] = {
    "hidream-i1": HostCase(
        "comfy.ldm.hidream.model.HiDreamImageTransformer2DModel",
        HIDREAM,
        with_(image(16), text(24, y=rows(20), encoder_hidden_states_llama3=rows(4, 9, 32))),
    ),
    "hidream-o1": HostCase(
        "comfy.ldm.hidream_o1.model.HiDreamO1Transformer", HIDREAM_O1, with_(image(3, 160, 224), unified), steps=2
    ),
    "omnigen2": HostCase(OMNIGEN_CLASS, OMNIGEN | {"text_feat_dim": 24}, with_(image(16), text(24, **TOKENS))),
    "omnigen2-reference": HostCase(
        OMNIGEN_CLASS, OMNIGEN | {"text_feat_dim": 24}, with_(image(16), text(24, **TOKENS, ref_latents=references))
    ),
    "boogu": HostCase(BOOGU_CLASS, BOOGU, with_(image(16), text(24, **TOKENS))),
    "boogu-reference": HostCase(BOOGU_CLASS, BOOGU, with_(image(16), text(24, **TOKENS, ref_latents=references))),
    "lens": HostCase(
        "comfy.ldm.lens.model.LensTransformer2DModel",
        LENS,
        with_(image(32, 7, 11), text(48, attention_mask=lambda random: text_mask(random).bool())),
    ),
    "joyimage": HostCase(
        "comfy.ldm.joyimage.model.JoyImageTransformer3DModel",
        JOYIMAGE,
        with_(latents(16, 1, 14, 22, sigma=700.0), text(24, ref_latents=lambda random: [random(BATCH, 16, 1, 8, 10)])),
    ),
    "pixeldit": HostCase("comfy.ldm.pixeldit.model.PixDiT_T2I", PIXELDIT, with_(image(3, 40, 56), text(24))),
    "pid": HostCase(
        "comfy.ldm.pixeldit.pid.PidNet",
        PIXELDIT | {"lq_hidden_dim": 16, "lq_num_res_blocks": 1, "pit_lq_inject": True},
        with_(image(3, 40, 56), text(24, lq_latent=rows(16, 5, 7), degrade_sigma=always(torch.full((BATCH,), 0.2)))),
    ),
    "ideogram4": HostCase(IDEOGRAM_CLASS, IDEOGRAM, with_(image(32, 7, 11), text(24))),
    "ideogram4-mask": HostCase(IDEOGRAM_CLASS, IDEOGRAM, with_(image(32, 7, 11), text(24, attention_mask=text_mask))),
    "ideogram4-without-text": HostCase(IDEOGRAM_CLASS, IDEOGRAM, image(32, 7, 11)),
    "ernie-image": HostCase("comfy.ldm.ernie.model.ErnieImageModel", ERNIE, with_(image(32, 7, 11), text(24))),
}
