"""Z-Image (https://github.com/Tongyi-MAI/Z-Image), base and Turbo."""

from typing import Any

import torch

from .adapter import Adapter, Config, Tensors, register_adapter, text_within
from .spec import BlockList, ModelSpec, single_stream


def inputs(config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """Qwen's embeddings (B, tokens, width), and a mask (B, tokens) if not all count. Time starts from noise at 0."""
    texts, masks = conditions["encoder_hidden_states"], conditions.get("encoder_attention_mask")
    if masks is not None:
        texts = [text_SD[mask_S.bool()] for text_SD, mask_S in zip(texts, masks, strict=True)]
    return {"x": list(latents_BCHW.unsqueeze(2)), "t": 1 - sigma_B, "cap_feats": list(texts)}


BLOCKS = single_stream(
    "layers",
    "x",
    "attention",
    sides={"freqs_cis": (1, "x")},
    whole=("attn_mask", "adaln_input"),
    refused=("noise_mask", "adaln_noisy", "adaln_clean"),
    chained=True,
)
HEAD = BlockList(
    "all_final_layer.2-1",
    tokens={"x": "x"},
    returns="x",
    whole=("c",),
    refused=("noise_mask", "c_noisy", "c_clean"),
    chained=True,
)
register_adapter(
    Adapter(
        ModelSpec("ZImageTransformer2DModel", (BLOCKS,), heads="config.n_heads", width="config.dim", head=HEAD),
        conditions=("encoder_hidden_states", "encoder_attention_mask"),
        optional=("encoder_attention_mask",),
        widths={"encoder_hidden_states": "cap_feat_dim"},
        geometry=lambda config: (config["in_channels"], (2, 2)),
        largest=lambda config: tuple(config["axes_lens"][1:]),
        check=text_within(lambda config: (config["axes_lens"][0] - 2) // 32 * 32),  # the model pads it to as many
        timestep_scale=1e-3,
        inputs=inputs,
        output=lambda config, samples, latents: -torch.stack(list(samples)).squeeze(2),
    )
)
