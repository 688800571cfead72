"""Writes a diffusers transformer's weights as the files of its authors have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

Weights = dict[str, torch.Tensor]
Place = str | tuple[str, int]
BLOCK = re.compile(r"transformer_blocks\.(\d+)\.")


@dataclass(frozen=True)
class OriginalLayout:
    """Modules: diffusers' name of a module, or of a parameter, to the original one; with a number, to that part of it.

    {} is the number of a block. swapped: modules whose weights have scale and shift the other way around; those of
    the last block with `last`. norm: what weights of norms are called.
    """

    modules: Mapping[str, Place]
    swapped: tuple[str, ...] = ()
    norm: str = "weight"

    def origins(self, weights: Weights) -> dict[str, tuple[str, int]]:
        """By diffusers' name of a parameter, the name of its tensor, and its number among the parts of that."""
        origins = {}
        for name in weights:
            pattern = BLOCK.sub("transformer_blocks.{}.", name, count=1)
            block = found[1] if (found := BLOCK.search(name)) else ""
            module, _, end = pattern.rpartition(".")
            place, end = (self.modules[pattern], "") if pattern in self.modules else (self.modules[module], f".{end}")
            original, part = (place, 0) if isinstance(place, str) else place
            if ".norm" in original and end == ".weight":
                end = f".{self.norm}"
            origins[name] = (original.format(block) + end, part)
        return origins

    def write(self, weights: Weights) -> Weights:
        last = max(int(found[1]) for name in weights if (found := BLOCK.match(name)))
        swapped = tuple(module.format(last=last) for module in self.swapped)
        parts: dict[str, dict[int, torch.Tensor]] = {}
        for name, (original, part) in self.origins(weights).items():
            tensor = weights[name]
            if name.startswith(swapped):
                scale, shift = tensor.chunk(2)
                tensor = torch.cat([shift, scale])
            parts.setdefault(original, {})[part] = tensor
        return {name: torch.cat([held[part] for part in sorted(held)]) for name, held in parts.items()}


def fused(original: str, *modules: str) -> dict[str, Place]:
    return {module: (original, part) for part, module in enumerate(modules)}


def attention(original: str, module: str, *names: str) -> dict[str, Place]:
    return fused(original, *(f"{module}.{name}" for name in names))


def in_block(block: str, original: str, modules: Mapping[str, Place]) -> dict[str, Place]:
    def below(place: Place) -> Place:
        return f"{original}.{place}" if isinstance(place, str) else (f"{original}.{place[0]}", place[1])

    return {f"{block}.{module}": below(place) for module, place in modules.items()}


QKV = ("to_q", "to_k", "to_v")
ADDED = ("add_q_proj", "add_k_proj", "add_v_proj")
PIXART = OriginalLayout(
    {
        "pos_embed.proj": "x_embedder.proj",
        "caption_projection.linear_1": "y_embedder.y_proj.fc1",
        "caption_projection.linear_2": "y_embedder.y_proj.fc2",
        "adaln_single.emb.timestep_embedder.linear_1": "t_embedder.mlp.0",
        "adaln_single.emb.timestep_embedder.linear_2": "t_embedder.mlp.2",
        "adaln_single.emb.resolution_embedder.linear_1": "csize_embedder.mlp.0",
        "adaln_single.emb.resolution_embedder.linear_2": "csize_embedder.mlp.2",
        "adaln_single.emb.aspect_ratio_embedder.linear_1": "ar_embedder.mlp.0",
        "adaln_single.emb.aspect_ratio_embedder.linear_2": "ar_embedder.mlp.2",
        "adaln_single.linear": "t_block.1",
        "proj_out": "final_layer.linear",
        "scale_shift_table": "final_layer.scale_shift_table",
        **in_block(
            "transformer_blocks.{}",
            "blocks.{}",
            {
                "scale_shift_table": "scale_shift_table",
                **attention("attn.qkv", "attn1", *QKV),
                "attn1.to_out.0": "attn.proj",
                "attn2.to_q": "cross_attn.q_linear",
                **attention("cross_attn.kv_linear", "attn2", "to_k", "to_v"),
                "attn2.to_out.0": "cross_attn.proj",
                "ff.net.0.proj": "mlp.fc1",
                "ff.net.2": "mlp.fc2",
            },
        ),
    }
)
SD3 = OriginalLayout(
    {
        "pos_embed.pos_embed": "pos_embed",
        "pos_embed.proj": "x_embedder.proj",
        "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
        "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
        "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
        "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
        "context_embedder": "context_embedder",
        "norm_out.linear": "final_layer.adaLN_modulation.1",
        "proj_out": "final_layer.linear",
        **in_block(
            "transformer_blocks.{}",
            "joint_blocks.{}",
            {
                "norm1.linear": "x_block.adaLN_modulation.1",
                "norm1_context.linear": "context_block.adaLN_modulation.1",
                **attention("x_block.attn.qkv", "attn", *QKV),
                **attention("context_block.attn.qkv", "attn", *ADDED),
                **attention("x_block.attn2.qkv", "attn2", *QKV),
                "attn.norm_q": "x_block.attn.ln_q",
                "attn.norm_k": "x_block.attn.ln_k",
                "attn.norm_added_q": "context_block.attn.ln_q",
                "attn.norm_added_k": "context_block.attn.ln_k",
                "attn2.norm_q": "x_block.attn2.ln_q",
                "attn2.norm_k": "x_block.attn2.ln_k",
                "attn.to_out.0": "x_block.attn.proj",
                "attn.to_add_out": "context_block.attn.proj",
                "attn2.to_out.0": "x_block.attn2.proj",
                "ff.net.0.proj": "x_block.mlp.fc1",
                "ff.net.2": "x_block.mlp.fc2",
                "ff_context.net.0.proj": "context_block.mlp.fc1",
                "ff_context.net.2": "context_block.mlp.fc2",
            },
        ),
    },
    swapped=("norm_out.linear", "transformer_blocks.{last}.norm1_context.linear"),
)
FLUX = OriginalLayout(
    {
        "x_embedder": "img_in",
        "context_embedder": "txt_in",
        "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
        "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
        "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
        "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
        "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
        "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
        "norm_out.linear": "final_layer.adaLN_modulation.1",
        "proj_out": "final_layer.linear",
        **in_block(
            "transformer_blocks.{}",
            "double_blocks.{}",
            {
                "norm1.linear": "img_mod.lin",
                "norm1_context.linear": "txt_mod.lin",
                **attention("img_attn.qkv", "attn", *QKV),
                **attention("txt_attn.qkv", "attn", *ADDED),
                "attn.norm_q": "img_attn.norm.query_norm",
                "attn.norm_k": "img_attn.norm.key_norm",
                "attn.norm_added_q": "txt_attn.norm.query_norm",
                "attn.norm_added_k": "txt_attn.norm.key_norm",
                "attn.to_out.0": "img_attn.proj",
                "attn.to_add_out": "txt_attn.proj",
                "ff.net.0.proj": "img_mlp.0",
                "ff.net.2": "img_mlp.2",
                "ff_context.net.0.proj": "txt_mlp.0",
                "ff_context.net.2": "txt_mlp.2",
            },
        ),
        **in_block(
            "single_transformer_blocks.{}",
            "single_blocks.{}",
            {
                "norm.linear": "modulation.lin",
                **fused("linear1", "attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
                "proj_out": "linear2",
                "attn.norm_q": "norm.query_norm",
                "attn.norm_k": "norm.key_norm",
            },
        ),
    },
    swapped=("norm_out.linear",),
    norm="scale",
)
