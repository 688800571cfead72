"""Flux.1 dev, with the guidance scale as a condition, and schnell (https://github.com/black-forest-labs/flux)."""

import torch
import torch.nn.functional as F

from .spec import Config, ModelSpec, SideInput, Tensors, needs, register


def inputs(config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """Patches of 2×2 become tokens; text tokens are at (0, 0, 0), image tokens at (0, row, column). sigma: 0 to 1."""
    rows, columns = (torch.arange(size // 2, device=latents_BCHW.device) for size in latents_BCHW.shape[-2:])
    return {
        "hidden_states": F.unfold(latents_BCHW, 2, stride=2).transpose(1, 2),
        "timestep": sigma_B,
        "img_ids": torch.cartesian_prod(rows.new_zeros(1), rows, columns),
        "txt_ids": rows.new_zeros(conditions["encoder_hidden_states"].shape[1], 3),
        **conditions,
    }


register(
    ModelSpec(
        model_class="FluxTransformer2DModel",
        blocks=("transformer_blocks", "single_transformer_blocks"),
        streams=("hidden_states", "encoder_hidden_states"),
        returned=("encoder_hidden_states", "hidden_states"),
        self_attention={"attn": ("encoder_hidden_states", "hidden_states")},
        side_inputs=(SideInput("image_rotary_emb", 0, ("encoder_hidden_states", "hidden_states")),),
        conditions=("encoder_hidden_states", "pooled_projections", "guidance"),
        optional=("guidance",),
        head="proj_out",
        widths={"encoder_hidden_states": "joint_attention_dim", "pooled_projections": "pooled_projection_dim"},
        geometry=lambda config: (config["in_channels"] // 4, (2, 2)),
        tensor_parallel=True,
        timestep_scale=1e-3,
        check=needs(guidance=lambda config: config["guidance_embeds"]),
        inputs=inputs,
        output=lambda config, tokens, latents: F.fold(tokens.transpose(1, 2), latents.shape[-2:], 2, stride=2),
    )
)
