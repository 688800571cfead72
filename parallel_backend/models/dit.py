"""DiT, class-conditional (https://arxiv.org/abs/2212.09748): DiT-XL/2 and the demo model."""

import math

import torch
import torch.nn.functional as F

from ..errors import RequestError
from .spec import Config, ModelSpec, Tensors, register


def check(config: Config, conditions: Tensors) -> None:
    labels, null_label = conditions["class_labels"], config["num_embeds_ada_norm"]
    if labels.is_floating_point() or not ((0 <= labels) & (labels <= null_label)).all():
        raise RequestError(
            f"Class labels {labels.tolist()}: the model has classes 0 to {null_label - 1}, and {null_label} for none."
        )


def square_head(model: torch.nn.Module) -> None:
    """Fills the head's tokens up to a square number: diffusers' DiT unpatchifies to a square whatever comes in."""

    def fill(_module: torch.nn.Module, _args: tuple, tokens_BSD: torch.Tensor) -> torch.Tensor:
        tokens = tokens_BSD.shape[1]
        return F.pad(tokens_BSD, (0, 0, 0, (math.isqrt(tokens - 1) + 1) ** 2 - tokens))

    model.proj_out_2.register_forward_hook(fill)


def output(config: Config, square_BCHW: torch.Tensor, latents_BCHW: torch.Tensor) -> torch.Tensor:
    """The square back to patches in token order, and these to the latents' shape; learned variances are dropped."""
    square_BCHW = square_BCHW[:, : config["in_channels"]]
    patch, (height, width) = config["patch_size"], latents_BCHW.shape[-2:]
    if height == width:
        return square_BCHW
    patches = F.unfold(square_BCHW, patch, stride=patch)[..., : (height // patch) * (width // patch)]
    return F.fold(patches, (height, width), patch, stride=patch)


register(
    ModelSpec(
        model_class="DiTTransformer2DModel",
        blocks=("transformer_blocks",),
        streams=("hidden_states",),
        self_attention={"attn1": ("hidden_states",)},
        conditions=("class_labels",),
        inputs=lambda config, latents, timestep, conditions: {
            "hidden_states": latents,
            "timestep": timestep,
            "class_labels": conditions["class_labels"],
        },
        output=output,
        check=check,
        shared=("transformer_blocks.0.norm1.emb",),
        prepare=square_head,
    )
)
