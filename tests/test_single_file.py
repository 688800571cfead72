"""A PixArt checkpoint in one file, in the original layout or in diffusers' own, draws what its folder draws."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from demo.host import ComfyHost
from tests.conftest import write_pipeline
from tests.families import FAMILIES, Family
from tests.graphs import Job, latents, relative_error

DIFFUSERS_TO_ORIGINAL = {
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
}
BLOCK = {
    "attn1.to_out.0": "attn.proj",
    "attn2.to_q": "cross_attn.q_linear",
    "attn2.to_out.0": "cross_attn.proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
}


def pixart_with_heads_of_72(name: str) -> Family:
    """A tiny PixArt whose file tells its heads: the original layout has heads of 72 and trained for 1024 pixels."""
    config = {**FAMILIES[name].config, "attention_head_dim": 72, "num_attention_heads": 2, "cross_attention_dim": 144}
    return replace(FAMILIES[name], config={**config, "sample_size": 128, "norm_eps": 1e-6})


def original_layout(weights: dict[str, torch.Tensor], depth: int) -> dict[str, torch.Tensor]:
    """PixArt's own names: q, k and v in one tensor, k and v of the cross-attention in another."""
    original = {"y_embedder.y_embedding": torch.zeros(120, weights["caption_projection.linear_1.weight"].shape[1])}
    original["final_layer.scale_shift_table"] = weights["scale_shift_table"]
    for end in ("weight", "bias"):
        for theirs, ours in DIFFUSERS_TO_ORIGINAL.items():
            if f"{theirs}.{end}" in weights:
                original[f"{ours}.{end}"] = weights[f"{theirs}.{end}"]
        for index in range(depth):
            block = f"transformer_blocks.{index}"
            for theirs, ours in BLOCK.items():
                original[f"blocks.{index}.{ours}.{end}"] = weights[f"{block}.{theirs}.{end}"]
            joined = {
                "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
                "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
            }
            for ours, theirs in joined.items():
                original[f"blocks.{index}.{ours}.{end}"] = torch.cat(
                    [weights[f"{block}.{part}.{end}"] for part in theirs]
                )
            original[f"blocks.{index}.scale_shift_table"] = weights[f"{block}.scale_shift_table"]
    return original


@pytest.mark.parametrize("layout", ["original", "original, inside a checkpoint", "diffusers"])
@pytest.mark.parametrize("name", ["pixart-alpha", "pixart-sigma"])
def test_a_single_file_draws_what_the_folder_draws(name: str, layout: str, host: ComfyHost, models: Path) -> None:
    family = pixart_with_heads_of_72(name)
    folder = models / "models" / "diffusers" / f"{name}-72"
    if not folder.exists():
        FAMILIES[f"{name}-72"] = family
        pipeline = {"_class_name": "PixArtAlphaPipeline" if name == "pixart-alpha" else "PixArtSigmaPipeline"}
        write_pipeline(folder, f"{name}-72", pipeline)
        del FAMILIES[f"{name}-72"]
    weights = family.build().state_dict()
    if layout != "diffusers":
        weights = original_layout(weights, family.config["num_layers"])
    if "checkpoint" in layout:
        weights = {f"model.diffusion_model.{key}": value for key, value in weights.items()}
    file = f"{name}, {layout}.safetensors"
    save_file({key: value.clone() for key, value in weights.items()}, models / "models" / "diffusion_models" / file)

    job = Job(folder.name, "text.safetensors", "other-text.safetensors", width=512, height=512, seed=3, plan={"cfg": 2})
    from_folder = latents(host, job.prompt())
    from_file = latents(host, replace(job, model=file).prompt())
    assert relative_error(from_file, from_folder) <= 1e-6
