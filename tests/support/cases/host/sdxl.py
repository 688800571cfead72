"""A UNet of SDXL's proportions by ComfyUI's own class, and what its ranks have to send in bands of rows.

SDXL has 320 channels in its first level, and latents of 128 × 128 at 1024². Levels and depths are SDXL's here. Heads
are nearly as many: 8 and 16, for 10 and 20. Text and labels are narrower.
"""

from __future__ import annotations

from typing import Any

import torch

from parallel_backend.compat import tree_map_only
from parallel_backend.costs.forward import ForwardCost, count_forward
from parallel_backend.plan import ParallelPlan
from tests.support.cases.host.base import fill_weights, of_comfyui
from tests.support.fakes.tally import ALL_GATHER, ALL_TO_ALL, SEND

UNET_CLASS = "comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel"
LATENT_CHANNELS, TEXT_TOKENS, TEXT_WIDTH, LABELS = 4, 77, 64, 64
NORMS, GROUPS, NUMBERS_OF_A_GROUP, FLOAT = 46, 32, 3, 4
# Of all padded convolutions, the channels of their input, in those of the first level, each divided by 2 for every
# level below it, as are the columns: by part of the model in its order, down, in the middle, and up.
BORDER_WIDTHS = (4 + 1) + (1 + 6 + 2) / 2 + (2 + 12) / 4 + 16 / 4 + (22 + 12) / 4 + 4 / 2 + (13 + 6) / 2 + 2 + 10 + 1
# Likewise, of blocks with self-attention, the channels by how many there are, divided by 4 for every level.
ATTENTION_WIDTHS = 10 * 2 / 4 + 60 * 4 / 16


def config(channels: int) -> dict[str, Any]:
    """What the class takes, for so many channels in the first level."""
    return {
        "image_size": 32, "in_channels": LATENT_CHANNELS, "out_channels": LATENT_CHANNELS, "dims": 2,
        "model_channels": channels, "num_res_blocks": [2, 2, 2], "channel_mult": [1, 2, 4],
        "num_heads": -1, "num_head_channels": channels // 4,
        "transformer_depth": [0, 0, 2, 2, 10, 10], "transformer_depth_middle": 10,
        "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
        "use_spatial_transformer": True, "use_linear_in_transformer": True, "use_temporal_attention": False,
        "context_dim": TEXT_WIDTH, "num_classes": "sequential", "adm_in_channels": LABELS,
    }  # fmt: skip


def build(channels: int, device: str = "cpu") -> torch.nn.Module:
    """The model; its weights are seeded on the CPU. Only where ComfyUI can be imported."""
    made = of_comfyui(UNET_CLASS, device=device, **config(channels))
    return fill_weights(made) if device == "cpu" else made.eval().requires_grad_(False)


def conditions(batch: int) -> dict[str, Any]:
    """The arguments beside latents and timesteps."""
    text, labels = torch.randn(batch, TEXT_TOKENS, TEXT_WIDTH), torch.randn(batch, LABELS)
    return {"context": text, "y": labels, "transformer_options": {}}


def count_cost(channels: int, latents: tuple[int, ...]) -> ForwardCost:
    """What auto knows of a forward of latents (B, C, H, W) before the model runs: counted on the meta device."""
    model = build(channels, "meta")
    given = {"x": torch.empty(latents), "timesteps": torch.empty(latents[0]), **conditions(latents[0])}
    on_meta = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), given)
    return count_forward(model, lambda: model(**on_meta), latents[0])


def sent_bytes(
    channels: int, latents: tuple[int, ...], plan: ParallelPlan, itemsize: int = FLOAT
) -> dict[str, dict[str, float]]:
    """What a rank of a plan has to send at most for a forward of latents (B, C, H, W), by kind of exchange and what it
    is for. Every rank has as many rows as any other. itemsize: bytes of a number.

    borders: a row of each padded convolution's input to each of up to two neighbours. statistics: three numbers in fp32
    of each group of each norm to every other rank. ulysses, ring: of blocks with A bytes of tokens, 4 A (N - 1) / N²
    and 2 A (N - 1) / N, each of what the other leaves. result: this rank's rows to every other rank of the picture.
    collected: the result of the second half of the batch to the first rank.
    """
    batch, _, height, width = latents
    ulysses, ring, ranks, groups = plan.ulysses, plan.ring, plan.token_ways, plan.dp * plan.cfg
    rows = -(-batch // groups)
    tokens = ATTENTION_WIDTHS * rows * height * width * channels * itemsize
    prediction = rows * LATENT_CHANNELS * height * width * itemsize
    sides = min(2, ranks - 1)
    return {
        SEND: {
            "borders": sides * rows * width * (BORDER_WIDTHS * channels + LATENT_CHANNELS) * itemsize,
            "ring": 2 * tokens / ulysses * (ring - 1) / ring,
            "collected": prediction if min(groups, batch) > 1 else 0,
        },
        ALL_GATHER: {
            "statistics": NORMS * NUMBERS_OF_A_GROUP * GROUPS * FLOAT * rows * (ranks - 1),
            "result": prediction * (ranks - 1) / ranks,
        },
        ALL_TO_ALL: {"ulysses": 4 * tokens / ring * (ulysses - 1) / ulysses**2},
    }
