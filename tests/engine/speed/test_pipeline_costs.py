"""What PipeFusion costs is told before it runs: fill, messages, text, weights. Auto takes it only where it may."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from parallel_backend.costs.correct import Correction
from parallel_backend.costs.forward import Cost, ForwardCost
from parallel_backend.costs.machine import Link, Machine, Speed
from parallel_backend.costs.predict import predict
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.sizes import WeightSizes
from tests.support.fakes.formulas import activation_bytes, sent_bytes
from tests.support.fakes.models import DIFFUSERS
from tests.support.fakes.tally import ALL_TO_ALL, SEND

NOTHING = Link(math.inf, 0.0)
FLUX, SIZE = DIFFUSERS["flux-dev"], "1024²"
TOKENS, TEXT = 64 * 64 + 512, 512


def ranks(count: int, link: Link = NOTHING, flops: float = 1e12) -> Machine:
    """Whose operations take no time but products."""
    speed = Speed("", flops, flops, math.inf, 0.0, math.inf, math.inf, math.inf)
    return Machine((speed,) * count, link, link, link, link, math.inf)


def forward(text: float = 0.0, rest: float = 0.0, blocks: int = 40) -> ForwardCost:
    """One second on one of `ranks`, half of it in attention; then what is outside of the blocks."""
    return ForwardCost(Cost(5e11, 5e11), Cost(rest * 1e12), blocks, 8e6, 0.0, 1e5, 24, 2e9, text=text)


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize(("stages", "patches"), [(2, 2), (2, 8), (4, 4), (4, 16)])
def test_a_step_waits_for_the_pipeline_to_fill_once_for_all_its_forwards(stages: int, patches: int, calls: int) -> None:
    plan = ParallelPlan(pipefusion=stages, patches=patches)
    found = predict(forward(), calls, plan, ranks(stages), calls=calls)
    turns = patches * calls
    fill = (stages - 1) / (turns + stages - 1)
    assert found.seconds == pytest.approx(calls / stages / (1 - fill))
    assert found.waiting == pytest.approx(0.0), "to wait for what others compute is no communication"
    whole = predict(forward(), calls, replace(plan, patches=1), ranks(stages), calls=calls)
    assert found.whole == pytest.approx(whole.seconds), "the first steps run whole"
    assert whole.seconds == pytest.approx(calls / stages / (1 - (stages - 1) / (calls + stages - 1)))


def test_a_loop_does_not_drain() -> None:
    plan = ParallelPlan(pipefusion=4, patches=8)
    assert predict(forward(), 1, plan, ranks(4), loops=True).seconds == pytest.approx(1 / 4)
    few = predict(forward(), 1, replace(plan, patches=2), ranks(4), loops=True)
    assert few.seconds == pytest.approx(1 / 2), "with fewer patches than stages, some stages have nothing to do"


def test_what_is_outside_of_the_blocks_is_computed_for_each_patch() -> None:
    plan = ParallelPlan(pipefusion=2, patches=4)
    assert predict(forward(rest=0.1), 1, plan, ranks(2)).seconds == pytest.approx(5 * (1 / 8 + 0.1))


def test_the_text_goes_with_the_first_patch() -> None:
    """Of two patches, the first has half of the image's tokens and all of the text's, so three quarters. The second
    stage begins its second turn when its own first one has ended."""
    found = predict(forward(text=0.5), 1, ParallelPlan(pipefusion=2, patches=2), ranks(2))
    assert found.seconds == pytest.approx(0.75 / 2 + 0.75 / 2 + 0.25 / 2)


def test_stages_share_by_their_blocks() -> None:
    """By memory, the first of Flux's stages has 17 of 57 blocks, so the other one is what a step takes."""
    sizes = WeightSizes(0, (36,) * 19 + (15,) * 38)
    plan = ParallelPlan(pipefusion=2, patches=8, balance="memory")
    found, even = (
        predict(forward(blocks=57), 1, each, ranks(2), sizes).seconds for each in (plan, replace(plan, balance="time"))
    )
    assert found == pytest.approx(17 / 57 / 8 + 40 / 57)
    assert even == pytest.approx(28 / 57 / 8 + 29 / 57)


@pytest.mark.parametrize("degrees", [{}, {"ulysses": 2}], ids=["stages", "with ulysses"])
def test_the_bytes_of_stages_are_those_of_the_formulas(degrees: dict[str, int]) -> None:
    """On a link so slow that nothing else counts, all patches go over it one after the other, and then the
    prediction."""
    plan = ParallelPlan(pipefusion=2, patches=4, **degrees)
    blocks = FLUX.blocks // 2
    sent = sent_bytes(FLUX, SIZE, plan, blocks)
    activation = activation_bytes(FLUX, SIZE, ParallelPlan())
    pixels = FLUX.channels * math.prod(FLUX.sizes[SIZE])
    told = ForwardCost(Cost(1.0), Cost(), FLUX.blocks, activation, 0.0, 2 * pixels, FLUX.heads, 1.0, text=TEXT / TOKENS)
    link = Link(1e6, 0.0)
    slow = replace(ranks(plan.world_size), send=link, collect=link)
    found = predict(told, 1, plan, slow)
    assert found.waiting == pytest.approx((sent[SEND]["stage"] + 2 * pixels) / 1e6)


@pytest.mark.parametrize("kind", ["ulysses", "ring"])
def test_the_bytes_of_an_exchange_of_patches_are_those_of_the_formulas(kind: str) -> None:
    """Ulysses sends what a patch has. Round a ring go all keys and values, for every patch."""
    plan = ParallelPlan(pipefusion=2, patches=4, **{kind: 2})
    blocks = FLUX.blocks // 2
    sent = sent_bytes(FLUX, SIZE, plan, blocks)[ALL_TO_ALL if kind == "ulysses" else SEND][kind]
    activation = activation_bytes(FLUX, SIZE, ParallelPlan())
    told = ForwardCost(Cost(1.0), Cost(), FLUX.blocks, activation, 0.0, 0.0, FLUX.heads, 1.0)
    sizes = WeightSizes(0, (1,) * FLUX.blocks)
    link = {"all_to_all": Link(1e9, 0.0)} if kind == "ulysses" else {}
    one = replace(ranks(4), **link) if kind == "ulysses" else ranks(4, Link(1e9, 0.0))
    found = predict(told, 1, plan, one, sizes)
    messages = 0.0 if kind == "ulysses" else sent_bytes(FLUX, SIZE, plan, blocks)[SEND]["stage"] / 1e9
    # The second stage has a block more, and begins its first turn after the first stage's.
    expected = sent / 1e9 * (1 + 1 / plan.patches)
    assert found.seconds - messages / plan.patches == pytest.approx(expected, rel=0.03)


def test_a_stage_keeps_its_own_weights_and_the_keys_of_all_tokens() -> None:
    sizes = WeightSizes(1_000, (10,) * 40)
    told = replace(forward(), peak=500.0)
    found = predict(told, 1, ParallelPlan(pipefusion=4, patches=4), ranks(4), sizes)
    assert found.bytes == pytest.approx(1_000 + 100 + 500 + 2 * 8e6 * 10)
    exact = predict(told, 1, ParallelPlan(pipefusion=4, patches=1), ranks(4), sizes)
    assert exact.bytes == pytest.approx(1_000 + 100 + 500)


def test_weights_that_each_patch_fetches_take_longer() -> None:
    sizes = WeightSizes(0, (10**9,) * 40)
    slow = replace(ranks(2), host=1e9)
    plan = ParallelPlan(pipefusion=2, patches=4, weights="host")
    assert predict(forward(), 1, plan, slow, sizes).seconds == pytest.approx(4 * 20)


def test_weights_are_fetched_for_each_forward_without_stages_too() -> None:
    sizes = WeightSizes(0, (10**9,) * 40)
    plan, slow = ParallelPlan(weights="host"), replace(ranks(2), host=1e9)
    assert predict(forward(), 2, plan, slow, sizes, calls=2).seconds == pytest.approx(2 * 40)
    assert predict(forward(), 2, replace(plan, cfg=2), slow, sizes, calls=2).seconds == pytest.approx(40)


def test_the_keys_of_a_group_are_those_of_its_own_rows() -> None:
    sizes = WeightSizes(0, (10,) * 40)
    told = replace(forward(), peak=0.0)
    found = predict(told, 2, ParallelPlan(cfg=2, pipefusion=2, patches=2), ranks(4), sizes)
    assert found.bytes == pytest.approx(200 + 2 * 8e6 * 20)


def test_steps_of_a_pipeline_correct_pipelines_alone() -> None:
    plan = ParallelPlan(pipefusion=2, patches=4)
    told, other = (predict(forward(), 1, each, ranks(2, Link(1e8, 0.0))) for each in (plan, replace(plan, patches=8)))
    exact = predict(forward(), 1, ParallelPlan(ulysses=2), ranks(2, Link(1e8, 0.0)))
    noted = Correction(computing=1.1).add_step(told, 2 * told.seconds, 0.9 * told.seconds)
    noted = Correction.from_json(noted.to_json())
    assert noted.correct(told).seconds == pytest.approx(2 * told.seconds)
    assert noted.correct(other).seconds == pytest.approx(2 * other.seconds)
    assert noted.correct(other).whole == pytest.approx(2 * other.whole)
    assert noted.correct(exact).computing == pytest.approx(1.1 * exact.computing)
    in_a_loop = predict(forward(), 1, plan, ranks(2), loops=True)
    assert in_a_loop.words not in noted.plans and told.words in noted.plans, "a loop takes less"
