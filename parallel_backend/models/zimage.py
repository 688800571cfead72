"""Z-Image (https://github.com/Tongyi-MAI/Z-Image), base and Turbo."""

from typing import Any

import torch

from .spec import Config, ModelSpec, SideInput, Sizes, Tensors, register, text_within


def inputs(config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """Qwen's embeddings (B, tokens, width), and a mask (B, tokens) where not all count; time runs from noise at 0."""
    texts, masks = conditions["encoder_hidden_states"], conditions.get("encoder_attention_mask")
    if masks is not None:
        texts = [text_SD[mask_S.bool()] for text_SD, mask_S in zip(texts, masks, strict=True)]
    return {"x": list(latents_BCHW.unsqueeze(2)), "t": 1 - sigma_B, "cap_feats": list(texts)}


register(
    ModelSpec(
        model_class="ZImageTransformer2DModel",
        blocks=("layers",),
        streams=("x",),
        self_attention={"attention": ("x",)},
        side_inputs=(SideInput("freqs_cis", 1, ("x",)),),
        conditions=("encoder_hidden_states", "encoder_attention_mask"),
        optional=("encoder_attention_mask",),
        widths={"encoder_hidden_states": "cap_feat_dim"},
        sizes=lambda config: Sizes(config["n_heads"], config["dim"] // config["n_heads"], config["n_layers"]),
        geometry=lambda config: (config["in_channels"], (2, 2)),
        largest=lambda config: tuple(config["axes_lens"][1:]),
        check=text_within(lambda config: (config["axes_lens"][0] - 2) // 32 * 32),  # the model pads it to as many
        pipefusion=False,
        timestep_scale=1e-3,
        head="all_final_layer.2-1",
        inputs=inputs,
        output=lambda config, samples, latents: -torch.stack(list(samples)).squeeze(2),
    )
)
