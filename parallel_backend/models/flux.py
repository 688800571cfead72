"""Flux.1 (https://github.com/black-forest-labs/flux): dev and schnell, Fill, Canny and Depth, Kontext."""

import torch
import torch.nn.functional as F

from .spec import Config, ModelSpec, SideInput, Tensors, needs, register

REFERENCES = ("reference_tokens", "reference_ids")


def channels(config: Config) -> int:
    return (config["out_channels"] or config["in_channels"]) // 4


def inputs(config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """Patches of 2×2 become tokens; text tokens are at (0, 0, 0), image tokens at (0, row, column). sigma: 0 to 1.

    image_latents (B, C, H, W) lie under the latents; reference_tokens (B, tokens, 4C), at reference_ids (B, tokens, 3),
    follow theirs.
    """
    keywords = dict(conditions)
    rows, columns = (torch.arange(size // 2, device=latents_BCHW.device) for size in latents_BCHW.shape[-2:])
    seen = [latents_BCHW, *([keywords.pop("image_latents")] if "image_latents" in keywords else ())]
    tokens = [F.unfold(torch.cat(seen, 1), 2, stride=2).transpose(1, 2)]
    places = [torch.cartesian_prod(rows.new_zeros(1), rows, columns)]
    if "reference_tokens" in keywords:
        tokens.append(keywords.pop("reference_tokens"))
        places.append(keywords.pop("reference_ids")[0])
    text = rows.new_zeros(conditions["encoder_hidden_states"].shape[1], 3)
    return {
        "hidden_states": torch.cat(tokens, 1),
        "img_ids": torch.cat(places),
        "txt_ids": text,
        "timestep": sigma_B,
    } | (keywords)


def output(_config: Config, tokens_BSD: torch.Tensor, latents_BCHW: torch.Tensor) -> torch.Tensor:
    own = tokens_BSD[:, : latents_BCHW[0, 0].numel() // 4]
    return F.fold(own.transpose(1, 2), latents_BCHW.shape[-2:], 2, stride=2)


register(
    ModelSpec(
        model_class="FluxTransformer2DModel",
        blocks=("transformer_blocks", "single_transformer_blocks"),
        streams=("hidden_states", "encoder_hidden_states"),
        returned=("encoder_hidden_states", "hidden_states"),
        self_attention={"attn": ("encoder_hidden_states", "hidden_states")},
        side_inputs=(SideInput("image_rotary_emb", 0, ("encoder_hidden_states", "hidden_states")),),
        conditions=("encoder_hidden_states", "pooled_projections", "guidance", "image_latents", *REFERENCES),
        optional=("guidance", "image_latents", *REFERENCES),
        appended=REFERENCES,
        head="proj_out",
        widths={"encoder_hidden_states": "joint_attention_dim", "pooled_projections": "pooled_projection_dim"},
        geometry=lambda config: (channels(config), (2, 2)),
        tensor_parallel=True,
        timestep_scale=1e-3,
        check=needs(
            guidance=lambda config: config["guidance_embeds"],
            image_latents=lambda config: config["in_channels"] // 4 - channels(config),
        ),
        inputs=inputs,
        output=output,
    )
)
