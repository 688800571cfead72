"""How many bytes a rank has to send for a forward, or under stages for a step, as the field's papers count them.

A is the bytes of all tokens that a group holds, rows × tokens × hidden × bytes; L the blocks of a stage; N an axis's
degree. The axes inside of an axis leave it their part of A.
"""

from __future__ import annotations

import math
from typing import Any

from parallel_backend.costs.memory import IN_BLOCKS, OUTSIDE
from parallel_backend.plan import ParallelPlan
from tests.support.fakes.models import Model
from tests.support.fakes.tally import ALL_GATHER, ALL_TO_ALL, SEND

BYTES, LATENT_BYTES = 2, 4  # of bf16; of latents in a sampling, in fp32

# By the model's name.
PLANS: dict[str, list[dict[str, Any]]] = {
    "flux-dev": [
        {},
        {"ulysses": 8},
        {"ring": 8},
        {"ring": 2, "ulysses": 4},
        {"ulysses": 5},
        {"pipefusion": 4, "ulysses": 2},
        {"ring": 2, "ulysses": 8},
        {"ring": 8, "ulysses": 8},
        {"pipefusion": 4, "ring": 2, "ulysses": 8},
        {"ulysses": 2, "weights": "shared"},
        {"ulysses": 3},
        {"ring": 2, "ulysses": 4, "weights": "shared", "weight_blocks": 17},
    ],
    "wan-14b": [
        {},
        {"ulysses": 8},
        {"ring": 8},
        {"cfg": 2, "ulysses": 4},
        {"cfg": 2, "pipefusion": 2, "ulysses": 2},
        {"cfg": 2, "ulysses": 8},
        {"cfg": 2, "ring": 4, "ulysses": 8},
        {"cfg": 2, "pipefusion": 4, "ulysses": 8},
        {"ulysses": 2, "weights": "shared"},
        {"cfg": 2, "ulysses": 4, "weights": "shared"},
        {"cfg": 2, "pipefusion": 2, "ulysses": 2, "weights": "shared"},
    ],
    "qwen-image": [
        {},
        {"ulysses": 8},
        {"cfg": 2, "ulysses": 4},
        {"cfg": 2, "pipefusion": 4, "patches": 1},
        {"cfg": 2, "ulysses": 8},
        {"cfg": 2, "ring": 4, "ulysses": 8},
        {"cfg": 2, "pipefusion": 4, "ulysses": 8, "patches": 1},
        {"cfg": 2, "weights": "shared"},
        {"cfg": 2, "ulysses": 2},
        {"cfg": 2, "ulysses": 4, "weights": "shared", "weight_blocks": 20},
    ],
}


def rows_of(model: Model, plan: ParallelPlan) -> int:
    """Of a step, that a rank computes."""
    return math.ceil(model.rows / (plan.dp * plan.cfg))


def activation_bytes(model: Model, plan: ParallelPlan) -> int:
    """A."""
    return rows_of(model, plan) * (model.image_tokens + model.text) * model.hidden * BYTES


def peak_bytes(model: Model, plan: ParallelPlan, blocks: int) -> float:
    """What a rank with so many blocks needs beside its weights at most, PipeFusion's keys and values of all tokens
    included."""
    whole = activation_bytes(model, plan)
    kept = blocks if plan.patch_count > 1 else 0
    return whole * ((IN_BLOCKS + 2 * kept) / plan.token_ways + OUTSIDE)


def sent_bytes(model: Model, plan: ParallelPlan, blocks: int) -> dict[str, dict[str, float]]:
    """What a rank with so many blocks has to send at most, by kind of exchange and what it is for.

    ulysses: 4 A (N - 1) / N² a block, or where the heads do not divide, A / N of 3 times the heads of others and N - 1
    times its own; ring: 2 A (N - 1) / N, each of what the other leaves;
    stage: A once a step, where the papers count 2 A, what comes and what goes. Under PipeFusion, all keys and values go
    round the ring for every patch, the stale ones too. The rest the papers leave out: after the last block the image's
    tokens come together, as narrow as the head makes them, and cfg's groups exchange predictions, whole ones for
    every patch; of a forward by itself, rank 0 collects them; with stages, the first stage gets the latents.
    """
    ulysses, ring, stages = plan.ulysses, plan.ring, plan.pipefusion
    tokens, samples = plan.token_ways, stages > 1
    heads = [model.heads // ulysses + (rank < model.heads % ulysses) for rank in range(ulysses)]
    scattered = (3 * (1 - min(heads) / sum(heads)) + (ulysses - 1) * max(heads) / sum(heads)) / ulysses
    whole = activation_bytes(model, plan)
    pixels = model.channels * math.prod(model.latents)
    prediction = rows_of(model, plan) * pixels * BYTES
    return {
        ALL_TO_ALL: {"ulysses": whole / ring * scattered * blocks},
        SEND: {
            "ring": 2 * whole / ulysses * (ring - 1) / ring * blocks * plan.patch_count,
            "stage": whole / tokens if samples else 0,
            "collected": prediction if plan.cfg > 1 and not samples else 0,
            "latents": pixels * LATENT_BYTES if samples else 0,
        },
        ALL_GATHER: {
            "tokens": prediction * (tokens - 1) / tokens,
            "predictions": prediction * (plan.cfg - 1) * plan.patch_count if samples else 0,
        },
    }
