"""Flux.2 dev, with the guidance scale as a condition, and klein (https://github.com/black-forest-labs/flux2)."""

import torch
import torch.nn.functional as F

from .packing import REFERENCES, without
from .spec import Config, ModelSpec, SideInput, Tensors, needs, register

REFERENCE_DISTANCE = 10


def inputs(config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """A latent pixel is a token, at (10 × number of the image, row, column, 0); text is at (0, 0, 0, place).

    sigma: 0 to 1. References are images of their own.
    """
    device = latents_BCHW.device
    images = [latents_BCHW, *(conditions[name] for name in REFERENCES if name in conditions)]
    places = [
        torch.cartesian_prod(*(torch.arange(size, device=device) for size in image.shape[-2:])) for image in images
    ]
    ids = [F.pad(F.pad(place, (1, 0), value=REFERENCE_DISTANCE * n), (0, 1)) for n, place in enumerate(places)]
    text = torch.arange(conditions["encoder_hidden_states"].shape[1], device=device)
    return {
        "hidden_states": torch.cat([image.flatten(2).transpose(1, 2) for image in images], 1),
        "timestep": sigma_B,
        "img_ids": torch.cat(ids),
        "txt_ids": F.pad(text[:, None], (3, 0)),
        **without(conditions, *REFERENCES),
    }


def output(_config: Config, tokens_BSD: torch.Tensor, latents_BCHW: torch.Tensor) -> torch.Tensor:
    return tokens_BSD[:, : latents_BCHW[0, 0].numel()].transpose(1, 2).reshape(latents_BCHW.shape)


register(
    ModelSpec(
        model_class="Flux2Transformer2DModel",
        blocks=("transformer_blocks", "single_transformer_blocks"),
        streams=("hidden_states", "encoder_hidden_states"),
        returned=("encoder_hidden_states", "hidden_states"),
        joined={"single_transformer_blocks": ("encoder_hidden_states", "hidden_states")},
        self_attention={"attn": ("encoder_hidden_states", "hidden_states")},
        beside={"attn.to_qkv_mlp_proj": "qkv+"},
        side_inputs=(SideInput("image_rotary_emb", 0, ("encoder_hidden_states", "hidden_states")),),
        conditions=("encoder_hidden_states", "guidance", *REFERENCES),
        optional=("guidance", *REFERENCES),
        appended=REFERENCES,
        head="proj_out",
        widths={"encoder_hidden_states": "joint_attention_dim"},
        timestep_scale=1e-3,
        guided=lambda config: not config["guidance_embeds"],
        check=needs(guidance=lambda config: config["guidance_embeds"]),
        inputs=inputs,
        output=output,
    )
)
