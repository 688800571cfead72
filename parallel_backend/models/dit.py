"""DiT, class-conditional (https://arxiv.org/abs/2212.09748): DiT-XL/2 and the demo model."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from ..errors import RequestError
from ..hooks import Hooks
from .adapter import Adapter, Config, Tensors, register_adapter, usual_spec
from .spec import BlockList, single_stream


def check(config: Config, conditions: Tensors) -> None:
    labels, null_label = conditions["class_labels"], config["num_embeds_ada_norm"]
    if labels.is_floating_point() or not ((0 <= labels) & (labels <= null_label)).all():
        raise RequestError(
            f"Class labels {labels.tolist()}: the model has classes 0 to {null_label - 1}, and {null_label} for none."
        )


def fill_square(head: torch.nn.Module, hooks: Hooks) -> None:
    """Hooks the model's last layer so that its tokens (B, S, width) are padded to a square number."""

    def fill(_module: torch.nn.Module, _args: tuple, tokens_BSD: torch.Tensor) -> torch.Tensor:
        tokens = tokens_BSD.shape[1]
        return F.pad(tokens_BSD, (0, 0, 0, (math.isqrt(tokens - 1) + 1) ** 2 - tokens))

    hooks.after(head, fill)


def from_square(square_BCHW: torch.Tensor, patch: int, height: int, width: int) -> torch.Tensor:
    """Turns the square back into patches in token order, and these into an image of the given size."""
    if height == width:
        return square_BCHW
    patches = F.unfold(square_BCHW, patch, stride=patch)[..., : (height // patch) * (width // patch)]
    return F.fold(patches, (height, width), patch, stride=patch)


BLOCKS = single_stream("transformer_blocks", "hidden_states", "attn1", stream="img", whole=(
        "attention_mask", "encoder_hidden_states", "encoder_attention_mask", "timestep", "cross_attention_kwargs",
        "class_labels", "added_cond_kwargs",
    ), chained=True)  # fmt: skip
register_adapter(
    Adapter(
        usual_spec(
            "DiTTransformer2DModel",
            replace(BLOCKS, shared=("transformer_blocks.0.norm1.emb",)),
            head=BlockList("proj_out_2", tokens={"input": "img"}, returns="img", chained=True),
        ),
        conditions=("class_labels",),
        inputs=lambda config, latents, timestep, conditions: {
            "hidden_states": latents,
            "timestep": timestep,
            "class_labels": conditions["class_labels"],
        },
        output=lambda config, square, latents: from_square(
            square[:, : config["in_channels"]], config["patch_size"], *latents.shape[-2:]
        ),
        check=check,
        prepare=lambda model, hooks: fill_square(model.get_submodule("proj_out_2"), hooks),
    )
)
