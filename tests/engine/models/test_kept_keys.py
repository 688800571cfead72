"""Ranks share the image's tokens of a model that keeps its text's keys and values from step to step (HiDream-O1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from parallel_backend.models import spec_named
from parallel_backend.seams.kept import KeptValues
from tests.support.ranks.pool import RankPool

TOLERANCE = 1e-5
STEPS = 3
# By number of ranks, plans that these take one after the other. Under cfg, ranks have kept the keys of other prompts.
# Each way to exchange tokens, and unlike devices, of which one has no token but padding; on four ranks, both together.
PLANS: dict[int, list[dict[str, Any]]] = {
    2: [{"cfg": 2}, {"ulysses": 2}, {"ring": 2, "speeds": [1, 0.4]}, {"ulysses": 2, "speeds": [0.001, 1]}],
    4: [{"cfg": 2, "ulysses": 2}, {"ulysses": 2, "ring": 2}],
}
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
CASES = [(world, place) for world, plans in PLANS.items() for place in range(len(plans))]


class Found(NamedTuple):
    """By sampling, the largest relative error of a call, and by rank the tokens that its first block was given, call by
    call."""

    errors: dict[str, float]
    seen: list[dict[str, list[int]]]


@pytest.fixture(scope="module")
def found(ranks: RankPool, comfyui: Path) -> dict[tuple[int, int], Found]:
    made = {world: ranks.run(world, "host.kept_ranks", plans, STEPS)[0] for world, plans in PLANS.items()}
    return {(world, place): Found(**made[world][place]) for world, place in CASES}


@pytest.mark.parametrize(("world", "place"), CASES)
def test_every_step_of_a_sampling_equals_the_plain_class(
    world: int, place: int, found: dict[tuple[int, int], Found]
) -> None:
    errors = found[world, place].errors
    assert errors.keys() == FRESH.keys()
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize(("world", "place"), CASES)
def test_from_the_second_step_on_ranks_share_the_tokens(
    world: int, place: int, found: dict[tuple[int, int], Found]
) -> None:
    for name, (fresh, prompts) in FRESH.items():
        if not fresh:
            continue
        by_rank = [seen[name] for seen in found[world, place].seen]
        later = [tokens[len(tokens) // STEPS :] for tokens in by_rank]
        counts = [count for tokens in later for count in tokens if count > 1]  # a rank without any has one of padding
        assert sum(counts) == (STEPS - 1) * prompts * fresh, name
        assert min(min(tokens[: len(tokens) // STEPS]) for tokens in by_rank) > fresh, "the first step runs whole"


def test_a_class_that_has_lost_the_method_runs() -> None:
    spec = spec_named("comfy.ldm.hidream_o1.model.HiDreamO1Transformer")
    assert spec and spec.drops
    kept = KeptValues(torch.nn.Linear(1, 1), spec)
    kept.drop()
    pixels = torch.ones(2)
    assert kept.identify({"ref_pixel_values": pixels})["ref_pixel_values"] is pixels
    assert kept.identify({"ref_pixel_values": pixels.clone()})["ref_pixel_values"] is pixels
