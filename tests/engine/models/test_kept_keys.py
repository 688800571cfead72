"""Ranks share the image's tokens of a model that keeps its text's keys and values from step to step (HiDream-O1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from parallel_backend.models import spec_named
from parallel_backend.seams.kept import KeptValues
from tests.support.cases.host.audio import MINIMAX
from tests.support.cases.host.joint import HIDREAM_O1
from tests.support.programs import run_program
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

TOLERANCE = 1e-5
LOSSY = 2e-2  # with an exchange in fewer bits
STEPS = 3
# By number of ranks, plans that these take one after the other. Under cfg, ranks have kept the keys of other prompts.
PLANS: dict[int, list[dict[str, Any]]] = {
    2: [
        {"cfg": 2},
        {"ulysses": 2},
        {"ring": 2, "speeds": [1, 0.4]},
        {"ulysses": 2, "speeds": [0.001, 1]},
        {"ring": 2},
        {"ulysses": 2, "exchange_dtype": "int4"},
    ],
    4: [
        {"cfg": 2, "ulysses": 2},
        {"ulysses": 2, "ring": 2},
        {"cfg": 2, "ring": 2, "speeds": [1, 0.4, 1, 1]},
        {"ring": 4},
        {"ulysses": 4},
    ],
}
# The gate has each way to exchange tokens, and unlike devices; on four ranks, both ways together.
OF_THE_GATE = {2: 4, 4: 2}
# By sampling, the tokens that each step computes anew, and the prompts; none if the model keeps none, which it does for
# two prompts at a time.
FRESH = {
    "text": (16, 2),
    "another prompt": (16, 2),
    "reference": (40, 2),
    "another reference": (40, 2),
    "two references with one text": (40, 2),
    "more prompts than are kept": (0, 0),
}
CASES = [
    pytest.param(world, place, marks=[] if place < OF_THE_GATE[world] else [pytest.mark.slow], id=json.dumps(plan))
    for world, plans in PLANS.items()
    for place, plan in enumerate(plans)
]


class Found(NamedTuple):
    """By sampling, the largest relative error of a call, and by rank the tokens that its first block was given, call by
    call."""

    errors: dict[str, float]
    seen: list[dict[str, list[int]]]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path) -> dict[tuple[int, int], Found]:
    found = {}
    wanted = running(request, "world", "place")
    for world in sorted({world for world, _ in wanted}):
        plans = PLANS[world][: 1 + max(place for own, place in wanted if own == world)]
        made = ranks.run(world, "host.kept_ranks", plans, STEPS)[0]
        found |= {(world, place): Found(**each) for place, each in enumerate(made)}
    return found


@pytest.mark.parametrize(("world", "place"), CASES)
def test_every_step_of_a_sampling_equals_the_plain_class(
    world: int, place: int, found: dict[tuple[int, int], Found]
) -> None:
    errors = found[world, place].errors
    assert errors.keys() == FRESH.keys()
    assert max(errors.values()) <= (LOSSY if "exchange_dtype" in PLANS[world][place] else TOLERANCE), errors


@pytest.mark.parametrize(("world", "place"), CASES)
def test_from_the_second_step_on_ranks_share_the_tokens(
    world: int, place: int, found: dict[tuple[int, int], Found]
) -> None:
    for name, (fresh, prompts) in FRESH.items():
        if not fresh:
            continue
        by_rank = [seen[name] for seen in found[world, place].seen]
        later = [tokens[len(tokens) // STEPS :] for tokens in by_rank]
        assert sum(map(sum, later)) == (STEPS - 1) * prompts * fresh, name
        assert min(min(tokens[: len(tokens) // STEPS]) for tokens in by_rank) > fresh, "the first step runs whole"


def test_a_class_that_has_lost_the_method_runs() -> None:
    spec = spec_named("comfy.ldm.hidream_o1.model.HiDreamO1Transformer")
    assert spec and spec.quirks.drops
    kept = KeptValues(torch.nn.Linear(1, 1), spec)
    kept.drop()
    pixels = torch.ones(2)
    assert kept.identify({"ref_pixel_values": pixels})["ref_pixel_values"] is pixels
    assert kept.identify({"ref_pixel_values": pixels.clone()})["ref_pixel_values"] is pixels


def counted_steps(comfyui: Path) -> list[dict[str, float]]:
    return json.loads(run_program(comfyui, "tests.support.files.counted_steps").splitlines()[-1])


def test_auto_counts_a_step_that_finds_the_keys(comfyui: Path) -> None:
    sizes = HIDREAM_O1["text_config_overrides"]
    layers, hidden, mlp = (sizes[name] for name in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    heads, kv_heads, head_dim = (sizes[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    of_a_token = 2 * hidden * ((2 * heads + 2 * kv_heads) * head_dim + 3 * mlp)
    for each in counted_steps(comfyui)[:2]:
        fresh = each["fresh"]
        assert each["linear"] == layers * of_a_token * fresh
        assert each["attention"] == layers * 4 * fresh * (each["kept"] + fresh) * heads * head_dim
        assert each["activation"] == fresh * hidden * 4
        assert each["kv"] == kv_heads / heads
        assert each["left"] == 0


def test_auto_counts_a_step_of_a_class_that_reads_its_timestep(comfyui: Path) -> None:
    """MiniMax H3 modulates video and sound by timesteps of their own, whose numbers it makes in Python."""
    (_, _, found), sizes, timesteps = counted_steps(comfyui), MINIMAX, 2
    layers, hidden, mlp = (sizes[name] for name in ("num_layers", "hidden_size", "ffn_hidden_size"))
    inner = sizes["num_attention_heads"] * sizes["attention_head_dim"]
    modulation = 2 * timesteps * sizes["time_embed_dim"] * 3 * 6 * hidden
    assert found["linear"] == layers * (2 * found["tokens"] * hidden * (4 * inner + 3 * mlp) + modulation)
    assert found["attention"] == layers * 4 * found["tokens"] ** 2 * inner
    assert found["activation"] == found["tokens"] * hidden * 4
