"""What a plan costs is told before it runs: what a forward takes is exact, and the fastest plan follows from links."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import diffusers
import pytest
import torch

from parallel_backend.costs.choose import Room, Tried, choose_prediction, list_plans, order_plans
from parallel_backend.costs.forward import Cost, ForwardCost, Work, count_forward
from parallel_backend.costs.machine import Link, Machine, Speed, assume_machine
from parallel_backend.costs.roofline import Prediction, predict
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.fitting import WeightRoom
from parallel_backend.weights.sizes import WeightSizes
from tests.support.fakes.formulas import sent_bytes
from tests.support.fakes.models import DIFFUSERS
from tests.support.fakes.tally import ALL_TO_ALL, SEND
from tests.support.links.profiles import PROFILES, counted_flops

FLUX = {
    "patch_size": 1, "in_channels": 16, "attention_head_dim": 16, "num_attention_heads": 3, "joint_attention_dim": 32,
    "pooled_projection_dim": 24, "guidance_embeds": True, "axes_dims_rope": (4, 6, 6), "num_layers": 3,
    "num_single_layers": 4,
}  # fmt: skip
SIZES = WeightSizes(0)  # of weights that take no memory


def flux(device: str) -> torch.nn.Module:
    with torch.device(device):
        return diffusers.FluxTransformer2DModel(**FLUX).eval()


def flux_call(device: str, tokens: int, text: int = 7) -> dict[str, Any]:
    shapes = {
        "hidden_states": (2, tokens, 16), "encoder_hidden_states": (2, text, 32), "pooled_projections": (2, 24),
        "timestep": (2,), "guidance": (2,), "img_ids": (tokens, 3), "txt_ids": (text, 3),
    }  # fmt: skip
    return {name: torch.zeros(shape, device=device) for name, shape in shapes.items()}


def test_a_forward_is_counted_exactly_without_running():
    real, empty = flux("cpu"), flux("meta")
    with torch.no_grad():
        flops = counted_flops(lambda: real(**flux_call("cpu", 33)))
    told = count_forward(empty, lambda: empty(**flux_call("meta", 33)), 2)
    assert told.flops * 2 == flops
    assert told.count == 7 and told.activation == (33 + 7) * 48 * 4
    assert told.prediction == 33 * 16 * 4 and told.itemsize == 4
    # Attention by hand: two products of every token with every other, in each block.
    assert told.blocks.attention == 7 * 2 * 2 * (33 + 7) ** 2 * 48


def test_a_forward_is_counted_in_inference_mode_as_outside_of_it():
    """ComfyUI samples in inference mode, in which torch does not split a linear layer before it is counted. It counts
    some reshapes as copies there."""

    def count() -> ForwardCost:
        model = flux("meta")
        return count_forward(model, lambda: model(**flux_call("meta", 33)), 2)

    with torch.inference_mode():
        found = count()
    usual = count()
    assert found.flops == usual.flops and found.blocks.linear == usual.blocks.linear > 0
    assert found.blocks == pytest.approx(usual.blocks, rel=0.05)


def test_a_condition_of_unknown_width_is_as_wide_as_the_model_takes_it():
    empty = flux("meta")
    narrow = flux_call("meta", 33) | {"encoder_hidden_states": torch.zeros(2, 7, 1, device="meta")}
    told = [count_forward(empty, lambda call=call: empty(**call), 2).flops for call in (flux_call("meta", 33), narrow)]
    assert told[0] == told[1]


@pytest.mark.parametrize("axis, kind", [("ulysses", ALL_TO_ALL), ("ring", SEND)], ids=["ulysses", "ring"])
@pytest.mark.parametrize("degree", [2, 3, 8])
def test_the_bytes_of_an_exchange_are_those_of_the_formulas(axis: str, kind: str, degree: int):
    model, plan = DIFFUSERS["flux-dev"], ParallelPlan(**{axis: degree})
    activation = (64 * 64 + 512) * 3072 * 2
    forward = ForwardCost(Cost(), Cost(), 57, activation, 0.0, 0.0, 24)
    waiting = predict(Work(forward=forward), plan, free_machine(degree, rate=1.0), SIZES).waiting
    assert waiting == pytest.approx(sent_bytes(model, plan, model.blocks)[kind][axis])


def free_machine(ranks: int, rate: float) -> Machine:
    """Ranks that compute at once, and whose exchanges nothing hides."""
    link = Link(rate, 0.0)
    return Machine((Speed("", 1e30, 1e30, 1e30, 1e-30),) * ranks, link, link, link, hides=0.0)


def shaped_like_flux(tokens: int) -> ForwardCost:
    """Of Flux-dev's blocks, in bf16; its rest is nothing beside them."""
    linear, attention = 57 * 2 * 2.1e8 * tokens, 57 * 4 * tokens**2 * 3072
    activation = tokens * 3072 * 2
    return ForwardCost(
        Cost(linear, attention, 60 * 57 * activation, 3400),
        Cost(),
        57,
        activation,
        20 * activation,
        tokens * 128,
        24,
    )


def machine(profile: str, ranks: int) -> Machine:
    own = PROFILES[profile]
    link = Link(own.link, 2e-5)
    speed = Speed("card", own.card, own.card, 1e12, 4e-6)
    return Machine((speed,) * ranks, link, link, link, own.host)


def ranked(
    forward: ForwardCost,
    rows: int,
    where: Machine,
    branches: bool = False,
    sizes: WeightSizes = SIZES,
    room: Room = lambda _plan, _working: None,
) -> list[Prediction]:
    """All plans of a model with 24 heads on all ranks, the best first."""
    plans = list_plans(len(where.speeds), rows, lambda plan: plan.check_model(heads=24), branches=branches, heads=24)
    return order_plans(plans, Work(rows, forward=forward), where, sizes, room)


def best(forward: ForwardCost, rows: int, where: Machine, branches: bool = False) -> str:
    return str(ranked(forward, rows, where, branches)[0].plan)


def test_nvlink_shares_tokens_by_ulysses():
    assert best(shaped_like_flux(4608), 1, machine("NVLink", 4)) == "ulysses=4"


def test_guidance_is_split_first():
    assert best(shaped_like_flux(4608), 2, machine("PCIe 4.0 x16", 2), branches=True) == "cfg=2"
    assert best(shaped_like_flux(4608), 2, machine("PCIe 4.0 x16", 4), branches=True).startswith("cfg=2 × ")


def test_a_small_image_over_a_slow_link_is_faster_on_one_device():
    predicted = ranked(shaped_like_flux(600), 1, machine("10 Gbit/s Ethernet", 2))
    assert str(predicted[0].plan) == "dp=2" and predicted[0].waiting == 0
    small, one = Work(forward=shaped_like_flux(600)), machine("10 Gbit/s Ethernet", 1)
    assert predicted[0].seconds == predict(small, ParallelPlan(), one, SIZES).seconds


def test_seconds_by_hand():
    forward = ForwardCost(Cost(100, 50, 20, 10), Cost(10, 0, 0, 0), 5, 8.0, 40.0, 4.0, 4)
    link = Link(10.0, 0.5)
    where = Machine((Speed("", 10.0, 5.0, 2.0, 0.1),) * 2, link, link, link)
    work = Work(forward=forward)
    told = predict(work, ParallelPlan(ulysses=2), where, WeightSizes(1000))
    assert told.computing == pytest.approx((100 / 10 + 50 / 5 + 20 / 2) / 2 + 10 * 0.1 + 10 / 10)
    # In each block 4 A / 4 = 8 bytes in four parts there and back, three of them behind attention, which takes a
    # second; then 2 bytes of 4.
    a_block = 8 / 10 + 8 * 0.5
    assert told.waiting == pytest.approx(5 * (a_block - 3 / 4) + 2 / 10 + 0.5)
    # Of the 40 bytes, 3 in 23 are of streams that both ranks have whole.
    assert told.bytes == pytest.approx(1000 + 40 * (3 + 20 / 2) / 23)
    ring = predict(work, ParallelPlan(ring=2), where, SIZES)
    assert ring.computing == pytest.approx(told.computing + 6 * 8 * 5 / 2), "which merges 6 A in each block"
    assert ring.waiting == pytest.approx(5 * (8 / 10 + 0.5 - 1 / 2) + 2 / 10 + 0.5)


@pytest.mark.parametrize(("patches", "loops", "turns"), [(1, False, 1 + 3), (8, False, 8 + 3), (8, True, 8)])
def test_a_stock_samplers_step_fills_and_drains_the_pipeline_and_a_loop_does_not(patches: int, loops: bool, turns: int):
    forward = ForwardCost(Cost(linear=800.0), Cost(), 8, 8.0, 40.0, 4.0, 4)
    where = replace(free_machine(4, rate=1e30), speeds=(Speed("", 1.0, 1.0, 1.0, 1e-30),) * 4)
    plan = ParallelPlan(pipefusion=4, patches=patches)
    told = predict(Work(forward=forward, loops=loops), plan, where, SIZES)
    assert told.seconds == pytest.approx(800 / 4 / patches * turns)
    assert told.words.endswith("in a loop") == loops


def room_of(device: float) -> Room:
    return lambda _plan, working: WeightRoom(int(device - working), int(64e9))


def test_a_plan_that_does_not_fit_comes_last_and_fetched_weights_take_time():
    sizes = WeightSizes(1_000_000, (1_000_000_000,) * 24)
    forward, where = shaped_like_flux(4608), machine("PCIe 4.0 x16", 2)
    roomy, narrow, none = (ranked(forward, 1, where, sizes=sizes, room=room_of(room)) for room in (40e9, 16e9, 1e9))
    assert all(each.fits for each in [*roomy, *narrow]) and not any(each.fits for each in none)
    assert max(each.bytes for each in narrow) <= 16e9
    slow = replace(where, all_gather=Link(2e9, 0), host=2e9)
    fetching = ranked(forward, 1, slow, sizes=sizes, room=room_of(16e9))
    assert narrow[0].seconds == roomy[0].seconds < fetching[0].seconds  # behind what is computed, or not


def test_a_machine_keeps_its_figures_in_json_and_refuses_others():
    where = machine("NVLink", 3)
    assert Machine.of(asdict(where)) == where
    for broken in ({"speeds": []}, {"host": 0}, {"send": [math.inf, 1]}, {"hides": 2}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            Machine.of(asdict(where) | broken)
    assert not assume_machine(["a"], on_cpu=False).is_measured


def of_speeds(where: Machine, *speeds: float) -> Machine:
    """With ranks so much slower than they are, in all that they do."""
    own = where.speeds[0]
    rates = ("linear", "attention", "memory")
    slowed = ({each: getattr(own, each) * by for each in rates} | {"operation": own.operation / by} for by in speeds)
    return replace(where, speeds=tuple(replace(own, name="", **each) for each in slowed))


def test_ranks_of_unlike_speed_share_in_proportion():
    where = of_speeds(machine("NVLink", 2), 1, 0.5)
    found = ranked(shaped_like_flux(4608), 1, where)
    assert found[0].plan.speeds == (1, 0.5) and found[0].plan.token_ways == 2
    even = next(each for each in found if each.plan == ParallelPlan(ulysses=2))
    # 16 of 24 heads, and two thirds of the tokens, go to the faster; an even half takes the slower as long as all.
    # What an operation takes at least does not shrink.
    assert even.computing == pytest.approx(found[0].computing * 3 / 2, rel=0.08)


def test_what_is_measured_of_like_ranks_differs_a_little_and_shares_evenly():
    alike, others = (of_speeds(machine("NVLink", 2), 1, speed) for speed in (0.8, 0.95))
    others = replace(others, speeds=(others.speeds[0], replace(others.speeds[1], name="another")))
    for where in (alike, others):
        assert not any(each.plan.speeds for each in ranked(shaped_like_flux(4608), 1, where))
    unlike = replace(alike, speeds=(alike.speeds[0], replace(alike.speeds[1], name="another")))
    assert any(each.plan.speeds for each in ranked(shaped_like_flux(4608), 1, unlike))


CFG, ULYSSES, RING, ONE = ParallelPlan(cfg=2), ParallelPlan(ulysses=2), ParallelPlan(ring=2), ParallelPlan()


def run_samplings(
    predicted: dict[ParallelPlan, float], took: dict[ParallelPlan, float], count: int
) -> list[tuple[ParallelPlan, Tried | None]]:
    """The choices of so many samplings, in which each plan takes these seconds."""
    found = [Prediction(plan, seconds, 0.0, 10, is_alone=plan == ONE) for plan, seconds in predicted.items()]
    measured: dict[str, float] = {}
    choices = []
    for _ in range(count):
        chosen, tried = choose_prediction(found, measured)
        choices.append((chosen.plan, tried))
        measured[chosen.words] = took[chosen.plan]
    return choices


def test_three_plans_are_tried_and_the_fastest_stays():
    predicted = {CFG: 1.0, ULYSSES: 1.1, RING: 1.15, ONE: 1.18}
    found = run_samplings(predicted, {CFG: 1.0, ULYSSES: 0.9, RING: 1.1, ONE: 0.5}, 5)
    assert found == [(CFG, None), (ULYSSES, (2, 3)), (RING, (3, 3)), (ULYSSES, None), (ULYSSES, None)]


def test_only_plans_within_a_third_of_the_fastest_so_far_are_tried():
    predicted, took = {ULYSSES: 1.0, RING: 1.5, ONE: 1.9}, {ULYSSES: 1.0, RING: 0.1, ONE: 0.1}
    assert [plan for plan, _ in run_samplings(predicted, took, 3)] == [ULYSSES] * 3


def test_plans_are_tried_though_all_take_less_than_predicted():
    predicted, took = {ULYSSES: 10.0, RING: 11.0, ONE: 15.0}, {ULYSSES: 1.0, RING: 0.9, ONE: 0.1}
    assert [plan for plan, _ in run_samplings(predicted, took, 3)] == [ULYSSES, RING, RING]


def test_one_device_is_tried_if_sharing_took_longer_than_predicted():
    predicted, took = {ULYSSES: 1.0, ONE: 1.9}, {ULYSSES: 3.0, ONE: 2.0}
    assert [plan for plan, _ in run_samplings(predicted, took, 3)] == [ULYSSES, ONE, ONE]


def test_a_plan_that_does_not_fit_is_not_tried():
    found = [Prediction(ULYSSES, 1.0, 0.0, 10), Prediction(ONE, 1.0, 0.0, 20, fits=False, is_alone=True)]
    assert choose_prediction(found, {str(ULYSSES): 1.0}) == (found[0], None)
