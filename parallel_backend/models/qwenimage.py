"""Qwen-Image and Qwen-Image-Edit (https://arxiv.org/abs/2508.02324)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..hooks import Hooks
from .adapter import Adapter, Config, Tensors, register_adapter
from .packing import REFERENCES, pack, pad_text, unpack, without
from .rotary import Placed, place_by_ids
from .spec import BlockList, ModelSpec

if TYPE_CHECKING:
    from diffusers import ModelMixin

TEXT_MASK = "encoder_hidden_states_mask"
IDS = ("image_ids", "text_ids")
CLEAN = "clean_references"


def inputs(config: Config, latents_BCFHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """Qwen2.5-VL's embeddings (B, tokens, width), their mask (B, tokens), and images to edit as latents. sigma: 0 to 1.

    image_ids, text_ids (B, tokens, 3): frame, row and column of every token, if not diffusers' choice. clean_references
    (B): whether these images count as free of noise, if not the config's `zero_cond_t`.
    """
    tokens_BSD, grids = pack(latents_BCFHW, conditions)
    shapes = Placed([grids] * len(tokens_BSD), *(conditions[name][0] for name in IDS if name in conditions))
    shapes.clean = bool(conditions[CLEAN][0]) if CLEAN in conditions else None
    text = pad_text(without(conditions, *REFERENCES, *IDS, CLEAN), TEXT_MASK, least=16)
    return {"hidden_states": tokens_BSD, "img_shapes": shapes, "timestep": sigma_B, **text}


def prepare(model: ModelMixin, hooks: Hooks) -> None:
    """Lets a request set the places of tokens, and whether its references are free of noise."""
    place_by_ids(model, hooks)
    trained = model.zero_cond_t

    def choose(zero_cond_t: bool) -> None:
        modules: list[Any] = [model, *model.transformer_blocks]
        for module in modules:
            module.zero_cond_t = zero_cond_t

    def choose_modulation(_model: torch.nn.Module, _args: tuple, keywords: dict) -> None:
        clean = getattr(keywords.get("img_shapes"), "clean", None)
        choose(trained if clean is None else clean)

    hooks.before(model, choose_modulation, with_kwargs=True)
    hooks.on_removal(lambda: choose(trained))


BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("txt", "img"),
    attention={"attn": "txt+img"},
    sides={"image_rotary_emb": (0, ("img", "txt")), TEXT_MASK: (1, "txt"), "modulate_index": (1, "img")},
    local_masks=("attn",),
    whole=("temb", "joint_attention_kwargs"),
    chained=True,
)
register_adapter(
    Adapter(
        ModelSpec(
            "QwenImageTransformer2DModel",
            (BLOCKS,),
            heads="config.num_attention_heads",
            head_dim="config.attention_head_dim",
            head=BlockList("proj_out", tokens={"input": "img"}, returns="img", chained=True),
        ),
        conditions=("encoder_hidden_states", TEXT_MASK, *REFERENCES, *IDS, CLEAN),
        optional=(TEXT_MASK, *REFERENCES, *IDS, CLEAN),
        appended=REFERENCES,
        uniform=(*IDS, CLEAN),
        memoised=("txt_norm", "txt_in"),
        widths={"encoder_hidden_states": "joint_attention_dim"},
        geometry=lambda config: (config["in_channels"] // 4, (1, 2, 2)),
        timestep_scale=1e-3,
        prepare=prepare,
        inputs=inputs,
        output=lambda config, tokens, latents: unpack(tokens, latents),
    )
)
