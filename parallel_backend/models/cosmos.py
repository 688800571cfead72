"""Cosmos Predict 2 and 2.5 (https://arxiv.org/abs/2511.00062), from text, or from frames that are kept."""

import torch

from ..errors import RequestError
from .adapter import Adapter, Config, Tensors, needs, register_adapter, usual_spec
from .spec import BlockList

needed = needs(condition_mask=lambda config: config["in_channels"] - config["out_channels"])


def check(config: Config, conditions: Tensors) -> None:
    """Raises RequestError for Cosmos 1, and for conditions that do not fit the model."""
    if config["extra_pos_embed_type"]:
        raise RequestError(
            "Cosmos 1 has a noise schedule of its own, which this loop does not have.",
            "Use its pipeline's own call, made parallel by parallelize.",
        )
    needed(config, conditions)


def inputs(config: Config, latents_BCFHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """Embeddings (B, tokens, width), frames per second (B) of a video, and condition_mask (B, 1, F, H, W): 1 in frames
    that are kept. sigma: 0 to 1, or one for each frame."""
    text_BSD, fps = conditions["encoder_hidden_states"], conditions.get("fps")
    return {
        "hidden_states": latents_BCFHW,
        "timestep": sigma_B if sigma_B.ndim == 1 else sigma_B[:, None, :, None, None],
        "encoder_hidden_states": text_BSD,
        "fps": None if fps is None else fps[0],
        "condition_mask": conditions.get("condition_mask"),
        "padding_mask": latents_BCFHW.new_zeros(1, 1, *latents_BCFHW.shape[-2:]),
    }


BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img"},
    returns="img",
    attention={"attn1": "img"},
    sides={"image_rotary_emb": (0, "img"), "extra_pos_emb": (1, "img")},
    frames={"embedded_timestep": ("img", 3), "temb": ("img", 3)},
    whole=("encoder_hidden_states", "attention_mask"),
    refused=("controlnet_residual", "latents", "block_idx"),
    chained=True,
)
register_adapter(
    Adapter(
        usual_spec("CosmosTransformer3DModel", BLOCKS),
        conditions=("encoder_hidden_states", "fps", "condition_mask"),
        optional=("fps", "condition_mask"),
        exact=("fps",),
        geometry=lambda config: (config["out_channels"], tuple(config["patch_size"])),
        largest=lambda config: tuple(
            size // side for size, side in zip(config["max_size"], config["patch_size"], strict=True)
        ),
        timestep_scale=1e-3,
        timestep_by_frame=True,
        check=check,
        inputs=inputs,
    )
)
