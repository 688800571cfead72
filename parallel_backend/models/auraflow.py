"""AuraFlow (https://huggingface.co/fal/AuraFlow-v0.3)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..hooks import Hooks
from .adapter import Adapter, Config, ModelSizes, Tensors, register_adapter
from .spec import BlockList, ModelSpec

if TYPE_CHECKING:
    from diffusers import ModelMixin

START = "position_start"


def inputs(_config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """T5's embeddings (B, tokens, width). position_start (B, 2): the row and column in the table of positions where the
    image begins, if not diffusers' choice. sigma: 0 to 1."""
    return {"hidden_states": latents_BCHW, "timestep": sigma_B, **conditions}


def place_by_start(model: ModelMixin, hooks: Hooks) -> None:
    """Lets AuraFlow's forward take `position_start`."""
    table = model.pos_embed
    choose = table.pe_selection_index_based_on_dim
    start: list[int] | None = None

    def take_start(_model: torch.nn.Module, args: tuple, keywords: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        nonlocal start
        start = keywords[START][0].tolist() if START in keywords else None
        return args, {name: value for name, value in keywords.items() if name != START}

    def positions(height: int, width: int) -> torch.Tensor:
        if start is None:
            return choose(height, width)
        side = math.isqrt(table.pos_embed_max_size)
        whole = torch.arange(side**2, device=table.pos_embed.device).view(side, side)
        sizes = zip(start, (height, width), strict=True)
        rows, columns = (slice(first, first + size // table.patch_size) for first, size in sizes)
        return whole[rows, columns].flatten()

    hooks.before(model, take_start, with_kwargs=True)
    hooks.replace(table, "pe_selection_index_based_on_dim", positions)


JOINT = BlockList(
    path="joint_transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("txt", "img"),
    attention={"attn": "txt+img"},
    whole=("temb", "attention_kwargs"),
    chained=True,
)
SINGLE = replace(
    JOINT,
    path="single_transformer_blocks",
    tokens={"hidden_states": "txt+img"},
    returns="txt+img",
)
register_adapter(
    Adapter(
        ModelSpec(
            "AuraFlowTransformer2DModel",
            (JOINT, SINGLE),
            heads="config.num_attention_heads",
            head_dim="config.attention_head_dim",
            head=BlockList("proj_out", tokens={"input": "img"}, returns="img"),
            image="img",
            linear_sigmas=False,
        ),
        conditions=("encoder_hidden_states", START),
        optional=(START,),
        widths={"encoder_hidden_states": "joint_attention_dim"},
        sizes=lambda config: ModelSizes(
            config["num_attention_heads"],
            config["attention_head_dim"],
            config["num_mmdit_layers"] + config["num_single_dit_layers"],
        ),
        largest=lambda config: (math.isqrt(config["pos_embed_max_size"]),) * 2,
        timestep_scale=1e-3,
        prepare=place_by_start,
        inputs=inputs,
    )
)
