"""Lumina 2 and Z-Image."""

from __future__ import annotations

from tests.support.cases.host.base import TEXT, HostCase, always, image, text, with_

LUMINA = {
    "image_model": "lumina2", "patch_size": 2, "in_channels": 16, "dim": 64, "n_layers": 3, "n_refiner_layers": 2,
    "n_heads": 4, "n_kv_heads": 2, "multiple_of": 32, "ffn_dim_multiplier": 1.0, "norm_eps": 1e-5, "qk_norm": True,
    "cap_feat_dim": 32, "axes_dims": [4, 6, 6], "axes_lens": [300, 512, 512],
}  # fmt: skip
Z_IMAGE = LUMINA | {
    "n_heads": 5, "n_kv_heads": 5, "dim": 320, "axes_dims": [16, 24, 24], "z_image_modulation": True,
    "time_scale": 1000.0, "pad_tokens_multiple": 32, "rope_theta": 256.0,
}  # fmt: skip
TEXT_INPUTS = {"num_tokens": always(TEXT)}
NEXT = "comfy.ldm.lumina.model.NextDiT"

CASES: dict[str, HostCase] = {
    "lumina2": HostCase(NEXT, LUMINA, with_(image(16), text(32, **TEXT_INPUTS))),
    "zimage": HostCase(NEXT, Z_IMAGE, with_(image(16), text(32, **TEXT_INPUTS))),
    "zimage-without-padding": HostCase(NEXT, Z_IMAGE, with_(image(16, 16, 24), text(32, **TEXT_INPUTS))),
    "zimage-omni": HostCase(
        NEXT,
        Z_IMAGE | {"siglip_feat_dim": 24},
        with_(
            image(16),
            text(
                32,
                **TEXT_INPUTS,
                ref_latents=lambda random: [random(1, 16, 8, 10)],
                ref_contexts=lambda random: [random(1, 9, 32)],
                siglip_feats=lambda random: [random(1, 4, 4, 24)],
            ),
        ),
    ),
    "zimage-pixel-space": HostCase(
        "comfy.ldm.lumina.model.NextDiTPixelSpace",
        Z_IMAGE | {"decoder_hidden_size": 16, "decoder_num_res_blocks": 1},
        with_(image(16), text(32, **TEXT_INPUTS)),
    ),
}
