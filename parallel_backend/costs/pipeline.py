"""Predicts a step of PipeFusion: turns of patches that go through stages, see `seams/pipeline/step_pipeline.py`.

A turn is one forward of a patch, or of the whole image while steps run whole. A stage begins a turn when the turn's
tokens have arrived from the stage before, and its own turn before has ended. A step by step sampler waits until the
last turn has left the last stage. In a loop, a patch's next step begins when its latents are back on the first stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..groups.mesh_layout import largest_rows, stages_of
from ..plan import ParallelPlan
from ..weights.sizes import WeightSizes
from .forward import ForwardCost
from .memory import kept_factor, rank_bytes

STALE = 4  # in multiples of A: what `StaleCache` reads and writes for fresh keys and values in each block
LOOPS = 4  # steps of a loop, after which each takes as long as the one before
LATENT_BYTES = 4  # of a latent's number, which goes from the last stage to the first


class Turn(NamedTuple):
    """tokens: the share of the tokens that run. patch: its number."""

    tokens: float
    patch: int = 0


class PipelineTimes(NamedTuple):
    """Seconds of a pipeline's parts: by stage and turn; of each turn's message to the next stage; of a patch's latents
    on their way back to the first stage."""

    stages: list[list[float]]
    messages: list[float]
    latents: float = 0.0


def list_turns(plan: ParallelPlan, text: float, forwards: int) -> list[Turn]:
    """Returns the turns of a step that runs patch by patch. The text goes with the first patch. text: its share of the
    tokens. forwards: of each patch."""
    patches = plan.patch_count
    shares = [(1 - text) / patches + (text if patch == 0 else 0.0) for patch in range(patches)]
    return [Turn(share, patch) for patch, share in enumerate(shares) for _ in range(forwards)]


def share_blocks(plan: ParallelPlan, sizes: WeightSizes | None) -> list[float]:
    """Returns each stage's share of the blocks, which take equally long. sizes: of the weights; without them, the
    shares are even."""
    if sizes is None or len(sizes.blocks) < plan.pipefusion:
        return [1 / plan.pipefusion] * plan.pipefusion
    return [len(stage) / len(sizes.blocks) for stage in stages_of(plan, sizes.blocks)]


def cut_forward(forward: ForwardCost, blocks: float, tokens: float, is_cached: bool) -> ForwardCost:
    """Returns the cost of a forward of a part of the blocks and tokens. is_cached: whether it keeps keys and values.

    Everything outside of the blocks is computed in full, as the model's own code does it.
    """
    own, count = forward.blocks.times(blocks * tokens), max(1, round(forward.count * blocks))
    kept = is_cached * STALE * forward.kv * count * forward.activation * tokens
    part = own._replace(moved=own.moved + kept, operations=own.operations * blocks)
    return replace(
        forward,
        blocks=part,
        count=count,
        activation=forward.activation * tokens,
        cached=forward.activation if is_cached else 0.0,
        prediction=forward.prediction * tokens,
    )


def count_working_bytes(forward: ForwardCost, rows: int, plan: ParallelPlan, sizes: WeightSizes | None) -> float:
    """Returns what the rank with the most needs beside the weights: for a forward of all rows, and for what it keeps
    for later steps."""
    blocks = max(share_blocks(plan, sizes)) * forward.count
    tokens = forward.activation * largest_rows(plan, rows) / plan.token_ways
    return rank_bytes(forward.peak * rows, rows, plan) + kept_factor(plan, forward.kv) * tokens * blocks


def run_pipeline(times: PipelineTimes, turns: Sequence[Turn], loops: bool) -> float:
    """Returns the seconds of a step. loops: whether steps follow one another without a pause."""
    stages, patches = times.stages, max(turn.patch for turn in turns) + 1
    free, links = [0.0] * len(stages), [0.0] * len(stages)
    back, ends = [0.0] * patches, []
    last = {turn.patch: index for index, turn in enumerate(turns)}  # of a patch's forwards, which gives its latents
    for _ in range(LOOPS if loops else 1):
        arrived_back = [0.0] * patches
        for index, turn in enumerate(turns):
            arrived = back[turn.patch]
            for stage, seconds in enumerate(stages):
                free[stage] = max(free[stage], arrived) + seconds[index]
                is_sent = stage < len(stages) - 1
                needed = times.messages[index] if is_sent else times.latents * (index == last[turn.patch])
                links[stage] = max(links[stage], free[stage]) + needed
                arrived = links[stage]
            arrived_back[turn.patch] = max(arrived_back[turn.patch], arrived)
        back = arrived_back
        ends.append(free[-1])
    return ends[-1] - ends[-2] if loops else ends[-1]


def without_links(times: PipelineTimes, busy: list[list[float]]) -> PipelineTimes:
    """Returns the times of a pipeline in which nothing is sent. busy: seconds of computing, by stage and turn."""
    return PipelineTimes(busy, [0.0] * len(times.messages))


Estimate = Callable[[ForwardCost, int], tuple[float, float]]


def time_turns(
    forward: ForwardCost,
    plan: ParallelPlan,
    turns: Sequence[Turn],
    shares: Sequence[float],
    estimate: Estimate,
) -> tuple[list[list[float]], list[list[float]]]:
    """Returns the seconds of each turn on each stage: of computing alone, and with what is exposed of exchanges.

    shares: of the blocks, by stage. estimate: returns the seconds of computing and of exposed exchanges of a part of a
    forward, on a stage.
    """
    busy, all_seconds = [], []
    is_cached = plan.patch_count > 1
    for stage, share in enumerate(shares):
        known = {tokens: estimate(cut_forward(forward, share, tokens, is_cached), stage) for tokens, _ in turns}
        busy.append([known[turn.tokens][0] for turn in turns])
        all_seconds.append([sum(known[turn.tokens]) for turn in turns])
    return busy, all_seconds
