"""What a plan costs is told before it runs: what a forward takes is exact, and the fastest plan follows from links."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch

from parallel_backend.compat import tree_map_only
from parallel_backend.costs.auto import PlanOfRun, Work
from parallel_backend.costs.choose import Weights, list_plans, rank_plans
from parallel_backend.costs.correct import Correction
from parallel_backend.costs.forward import Cost, ForwardCost, count_forward
from parallel_backend.costs.machine import Link, Machine, Speed, assume_machine
from parallel_backend.costs.predict import EXCHANGES, Prediction, predict
from parallel_backend.models.flux import PARALLEL_MLP
from parallel_backend.models.parallel_mlp import count_mlp_rows
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.fitting import WeightRoom
from parallel_backend.weights.sizes import WeightSizes, sizes_of_model
from tests.support.cases.families import FAMILIES
from tests.support.fakes.formulas import sent_bytes
from tests.support.fakes.models import DIFFUSERS
from tests.support.fakes.sparse_pattern import pattern, with_text
from tests.support.fakes.tally import ALL_TO_ALL, SEND
from tests.support.links.profiles import PROFILES, counted_flops

FLUX = {
    "patch_size": 1, "in_channels": 16, "attention_head_dim": 16, "num_attention_heads": 3, "joint_attention_dim": 32,
    "pooled_projection_dim": 24, "guidance_embeds": True, "axes_dims_rope": (4, 6, 6), "num_layers": 3,
    "num_single_layers": 4,
}  # fmt: skip


def flux(device: str) -> torch.nn.Module:
    with torch.device(device):
        return diffusers.FluxTransformer2DModel(**FLUX).eval()


def flux_call(device: str, tokens: int, text: int = 7) -> dict[str, Any]:
    shapes = {
        "hidden_states": (2, tokens, 16), "encoder_hidden_states": (2, text, 32), "pooled_projections": (2, 24),
        "timestep": (2,), "guidance": (2,), "img_ids": (tokens, 3), "txt_ids": (text, 3),
    }  # fmt: skip
    return {name: torch.zeros(shape, device=device) for name, shape in shapes.items()}


def blocks_of(model: Any) -> list[torch.nn.Module]:
    return [*model.transformer_blocks, *model.single_transformer_blocks]


def test_a_forward_is_counted_exactly_without_running():
    real, empty = flux("cpu"), flux("meta")
    with torch.no_grad():
        flops = counted_flops(lambda: real(**flux_call("cpu", 33)))
    told = count_forward(empty, blocks_of(empty), lambda: empty(**flux_call("meta", 33)), rows=2, heads=3)
    assert told.flops * 2 == flops
    assert told.weights == sum(each.nbytes for each in real.parameters()) == sizes_of_model(real).total
    assert told.count == 7 and told.activation == (33 + 7) * 48 * 4
    assert told.prediction == 33 * 16 * 4 and told.itemsize == 4
    # Attention by hand: two products of every token with every other, in each block.
    assert told.blocks.attention == 7 * 2 * 2 * (33 + 7) ** 2 * 48
    assert told.blocks.scores == 7 * 3 * (33 + 7) ** 2
    # The GELU of each block's MLP, which is four times as wide, reads and writes its tokens.
    gelu = 2 * 7 * (33 + 7) * 4 * 48 * 4
    assert gelu <= told.blocks.functions < 1.2 * gelu
    # The weights of few tokens are read once for all rows: modulation's, and in double blocks the 2 × 7 text tokens'.
    doubles, singles = (len(each) for each in (empty.transformer_blocks, empty.single_transformer_blocks))
    assert told.blocks.read == (doubles * (2 * 6 + 12) + singles * 3) * 48 * 48 * 4


def test_the_products_beside_attention_are_those_of_the_mlp_in_single_blocks():
    empty = flux("meta")
    counted = [count_mlp_rows(block, PARALLEL_MLP, 48) for block in blocks_of(empty)]
    rows = {layer: count for each in counted for layer, count in each.items()}
    told = count_forward(
        empty, blocks_of(empty), lambda: empty(**flux_call("meta", 33)), rows=2, heads=3, mlp_rows=rows
    )
    single = len(empty.single_transformer_blocks)
    assert told.parallel == single / 7 and told.plain == 1
    assert told.blocks.overlap == single * 2 * (33 + 7) * 48 * 4 * 48
    layer: Any = empty.single_transformer_blocks[0].proj_mlp
    layer.weight = type("Quantised", (torch.nn.Parameter,), {})(layer.weight.detach())
    again = count_forward(
        empty, blocks_of(empty), lambda: empty(**flux_call("meta", 33)), rows=2, heads=3, mlp_rows=rows
    )
    assert again.plain == 1 - 1 / single and again.blocks.overlap == told.blocks.overlap


def test_a_condition_of_unknown_width_is_as_wide_as_the_model_takes_it():
    empty = flux("meta")
    narrow = flux_call("meta", 33) | {"encoder_hidden_states": torch.zeros(2, 7, 1, device="meta")}
    told = [
        count_forward(empty, blocks_of(empty), lambda call=call: empty(**call), rows=2, heads=3).flops
        for call in (flux_call("meta", 33), narrow)
    ]
    assert told[0] == told[1]


@pytest.mark.parametrize("axis, kind", [("ulysses", ALL_TO_ALL), ("ring", SEND)], ids=["ulysses", "ring"])
@pytest.mark.parametrize("degree", [2, 3, 8])
def test_the_bytes_of_an_exchange_are_those_of_the_formulas(axis: str, kind: str, degree: int):
    model, size = DIFFUSERS["flux-dev"], "1024²"
    plan = ParallelPlan(**{axis: degree})
    activation = (64 * 64 + 512) * 3072 * 2
    assert EXCHANGES[axis].sent(activation, degree, 1.0) * 57 == pytest.approx(
        sent_bytes(model, size, plan, model.blocks)[kind][axis]
    )


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
        23.8e9,
    )


def machine(profile: str, ranks: int, latency: float = 2e-5) -> Machine:
    own = PROFILES[profile]
    link = Link(own.link, latency)
    speed = Speed("card", own.card, own.card, 1e12, 4e-6, 1e15, 1e12, 1e12)
    return Machine((speed,) * ranks, link, link, link, link, own.host)


def ranked(
    forward: ForwardCost, rows: int, where: Machine, branches: bool = False, weights: Weights | None = None
) -> list[Prediction]:
    """All plans of a model with 24 heads on all ranks, the best first."""
    plans = list_plans(len(where.speeds), rows, lambda plan: plan.check_model(heads=24), branches=branches, heads=24)
    return rank_plans(plans, forward, rows, where, weights=weights)


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
    alone = predict(shaped_like_flux(600), 1, ParallelPlan(), machine("10 Gbit/s Ethernet", 1))
    assert predicted[0].seconds == alone.seconds


def test_no_plan_is_chosen_that_is_predicted_slower_than_one_device():
    for profile in PROFILES:
        for tokens in (300, 4608, 40000):
            where, forward = machine(profile, 4), shaped_like_flux(tokens)
            alone = predict(forward, 1, ParallelPlan(), where)
            assert ranked(forward, 1, where)[0].seconds <= alone.seconds


def test_in_a_loop_every_rank_gets_the_other_rows():
    forward = ForwardCost(Cost(100, 0, 0, 0), Cost(), 5, 8.0, 40.0, 4.0, 4, 1000)
    speed = Speed("", 10.0, 5.0, 2.0, 0.1, 4.0, 0.5, 1e9)
    where = Machine((speed,) * 2, *(Link(rate, 0.0) for rate in (8.0, 4.0, 1.0, 2.0)))
    steps, loop = (predict(forward, 2, ParallelPlan(cfg=2), where, loops=loops) for loops in (False, True))
    assert (steps.waiting, loop.waiting) == (4 / 2, 4 / 4), "one row to rank 0; or of each rank to all"
    assert steps.computing == loop.computing


PLANS_BY_HAND = ({"ulysses": 4}, {"ring": 4})


def test_code_between_the_blocks_costs_a_gathering_after_each():
    forward, where, plan = shaped_like_flux(4096), machine("PCIe 4.0 x16", 4), ParallelPlan(ulysses=4)
    gathering = predict(replace(forward, gathers=57), 1, plan, where).seconds - predict(forward, 1, plan, where).seconds
    link = where.all_gather
    alone = link.seconds(forward.prediction * 3 / 4, 1)
    assert gathering == pytest.approx(link.seconds((57 * forward.activation + forward.prediction) * 3 / 4, 58) - alone)
    assert predict(replace(forward, gathers=57), 1, ParallelPlan(cfg=1), where) == predict(
        forward, 1, ParallelPlan(cfg=1), where
    )


def test_seconds_by_hand():
    forward = ForwardCost(Cost(100, 50, 20, 10, 0, 12, 3), Cost(10, 0, 0, 0), 5, 8.0, 40.0, 4.0, 4, 1000)
    link = Link(10.0, 0.5)
    where = Machine((Speed("", 10.0, 5.0, 2.0, 0.1, 4.0, 0.5, 1e9),) * 2, link, link, link, link)
    told = predict(forward, 1, ParallelPlan(ulysses=2), where)
    # Ulysses copies 10 A in each of five blocks, half of them on each rank.
    parts = 100 / 10 + 50 / 5 + 12 / 4 + 20 / 2 + 3 / 0.5 + 5 * 10 * 8 / 2
    # And has 20 operations more in each.
    assert told.computing == pytest.approx(parts / 2 + (10 + 5 * 20) * 0.1 + 10 / 10)
    # In each block 4 A / 4 = 8 bytes in four parts there and back, three of them behind attention, which takes 1.3
    # seconds; then 2 bytes of 4.
    a_block = 8 / 10 + 8 * 0.5
    assert told.waiting == pytest.approx(5 * (a_block - min(a_block, 1.3) * 3 / 4) + 2 / 10 + 0.5)
    # Of the 40 bytes, 3 in 23 are of streams that both ranks have whole.
    assert told.bytes == pytest.approx(1000 + 40 * (3 + 20 / 2) / 23)


def test_seconds_of_a_lossy_exchange_by_hand():
    forward = ForwardCost(Cost(), Cost(), 5, 64.0, 0.0, 0.0, 4, 0.0, itemsize=4)
    link = Link(10.0, 0.0)
    where = Machine((Speed("", 1.0, 1.0, 2.0, 0.1, 1.0, 1.0, 1e9),) * 4, link, link, link, link)
    told = predict(forward, 1, ParallelPlan(ulysses=4, exchange_dtype="int4"), where)
    # Of 64 bytes a rank has 16. In each block it encodes and decodes 4 times as many, of queries, keys, values and
    # results. To encode it reads or writes a number 22 times, 8 times to decode, and each time its byte. Packing and
    # unpacking moves half of a byte and a 32nd for each number of 4 bytes, ten times.
    a_block = 4 * 16 * (22 + 8 + 2 / 4) + 10 * 16 * (1 / 2 + 1 / 32) / 4
    # In four parts: queries, keys, values and four times results; then all of them as they arrive.
    operations = (3 + 4) * 24 + 4 * 4 * 8
    assert told.computing == pytest.approx(5 * (a_block / 2 + (operations + 20) * 0.1))
    # 4 A (N - 1) / N² of so many of the bytes.
    assert told.waiting == pytest.approx(5 * 4 * 64 * 3 / 16 * (1 / 2 + 1 / 32) / 4 / 10)


def test_differences_send_a_quarter_and_keep_what_arrived():
    forward, where = shaped_like_flux(4608), machine("10 Gbit/s Ethernet", 2, latency=0)
    exact, differences = (
        predict(forward, 1, ParallelPlan(ulysses=2, exchange_dtype=name), where) for name in ("model", "int4")
    )
    assert differences.waiting < 0.3 * exact.waiting and differences.computing > exact.computing
    # In each of 57 blocks queries, keys, values and results, where they are sent and where they arrive, by two ranks.
    assert differences.bytes - exact.bytes == pytest.approx(57 * 8 * 4608 * 3072 * 2 / 2)


@pytest.mark.parametrize("sparse", ["radial", "radial_narrow"])
@pytest.mark.parametrize("text", [0, 20])
def test_sparse_attention_computes_the_pairs_that_the_pattern_keeps(text: int, sparse: str):
    """All that this machine takes time for is attention."""
    video, count = (9, 35), 9 * 35
    total = count + text
    pairs = with_text(pattern(*video, sparse), text, 0)
    assert not pairs.all()
    scores = 5.0 * total**2
    blocks = Cost(attention=4 * scores, scores=scores, own_scores=scores)
    forward = ForwardCost(blocks, Cost(), 5, 8.0, 0.0, 0.0, 4, 0.0, image_tokens=count, frames=9, text=text / total)
    where = Machine((Speed("", 1.0, 8.0, 1.0, 1.0, 2.0, 1.0, 1e9),) * 2, *(Link(1e30, 0.0),) * 4)
    plan = ParallelPlan(ulysses=2, sparse=sparse, sync_steps=3)
    dense, told = (predict(forward, 1, each, where) for each in (ParallelPlan(ulysses=2), plan))
    copied = dense.seconds - scores / 2
    assert told.plan == plan and told.whole == dense.seconds
    assert told.seconds - copied == pytest.approx(5 * int(pairs.sum()) / 2)
    assert told.average(12) == pytest.approx((3 * dense.seconds + 9 * told.seconds) / 12)
    half = predict(replace(forward, blocks=blocks._replace(own_scores=scores / 2)), 1, plan, where)
    assert half.seconds == pytest.approx((told.seconds + dense.seconds) / 2), "text that is attended to stays dense"
    noted = Correction().add_step(told, 3 * told.seconds, 0.0)
    assert noted.correct(told).seconds == pytest.approx(3 * told.seconds)
    assert noted.correct(dense) == dense, "its kernel is another"


def test_self_attention_is_told_from_attention_to_text():
    family = FAMILIES["wan-t2v"]
    with torch.device("meta"):
        model = family.build()
    latents, timesteps, conditions = (
        tree_map_only(torch.Tensor, lambda each: each.to("meta"), given) for given in family.inputs(1, 9, 10, 14)
    )
    blocks = [*model.blocks]
    told = count_forward(
        model, blocks, lambda: family.reference(model, latents, timesteps, conditions), rows=1, heads=2
    )
    heads, tokens = model.config.num_attention_heads, 9 * 35
    assert told.blocks.own_scores == len(blocks) * heads * tokens**2 < told.blocks.scores


def room_of(device: float) -> Callable[[ParallelPlan, float], WeightRoom]:
    return lambda _plan, working: WeightRoom(int(device - working), int(64e9))


def test_a_plan_that_does_not_fit_comes_last_and_fetched_weights_take_time():
    sizes = WeightSizes(1_000_000, (1_000_000_000,) * 24)
    forward, where = shaped_like_flux(4608), machine("PCIe 4.0 x16", 2)
    roomy, narrow, none = (
        ranked(forward, 1, where, weights=Weights(sizes, room_of(room))) for room in (40e9, 16e9, 1e9)
    )
    assert all(each.fits for each in [*roomy, *narrow]) and not any(each.fits for each in none)
    assert max(each.bytes for each in narrow) <= 16e9
    slow = replace(where, all_gather=Link(2e9, 0), host=2e9)
    fetching = ranked(forward, 1, slow, weights=Weights(sizes, room_of(16e9)))
    assert narrow[0].seconds == roomy[0].seconds < fetching[0].seconds  # behind what is computed, or not


def test_a_machine_keeps_its_figures_in_json_and_refuses_others():
    where = machine("NVLink", 3)
    assert Machine.of(where.to_json()) == where
    for broken in ({}, where.to_json() | {"host": 0}, where.to_json() | {"send": [math.inf, 1]}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            Machine.of(broken)
    assert not assume_machine(["a"], on_cpu=False).is_measured


def test_a_plan_that_leaves_ranks_waiting_from_the_first_lasts_for_its_sampling():
    """One device is the faster; what is learnt of steps meanwhile is for the next sampling."""
    alone, shared = ParallelPlan(dp=2), ParallelPlan(ulysses=2)
    best = [alone]
    run = PlanOfRun(lambda _work: SimpleNamespace(plan=best[0]))
    run.begin()
    run.follow(Work())
    best[0] = shared
    assert not any(run.follow(Work()) for _ in range(5)) and run.plan == alone
    run.begin()
    assert run.follow(Work()) and run.plan == shared


def of_speeds(where: Machine, *speeds: float) -> Machine:
    """With ranks so much slower than they are, in all that they do."""
    own = where.speeds[0]
    rates = ("linear", "attention", "memory", "scores", "functions", "weights")
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


def test_rows_go_by_speed():
    where = of_speeds(machine("NVLink", 4), 1, 0.9, 0.5, 0.5)
    found = [each.plan for each in ranked(shaped_like_flux(4608), 3, where)]
    assert ParallelPlan(dp=2, ulysses=2, speeds=(1, 0.9, 0.5, 0.5)) in found
    three = predict(shaped_like_flux(4608), 3, ParallelPlan(dp=2, ulysses=2, speeds=(1, 1, 0.5, 0.5)), where)
    one = predict(shaped_like_flux(4608), 1, ParallelPlan(dp=2, ulysses=2, speeds=(1, 1, 0.5, 0.5)), where)
    assert three.computing == pytest.approx(2 * one.computing, rel=0.05)  # two rows and one


def test_keys_of_grouped_queries_are_sent_once():
    forward, where = shaped_like_flux(4608), machine("10 Gbit/s Ethernet", 4, latency=0)
    whole, quarter = (predict(replace(forward, kv=kv), 1, ParallelPlan(ulysses=4), where).waiting for kv in (1.0, 0.25))
    assert quarter < whole and EXCHANGES["ring"].sent(8, 4, 0.25) == EXCHANGES["ring"].sent(8, 4, 1) / 4
    assert EXCHANGES["ulysses"].sent(8, 4, 0.25) == EXCHANGES["ulysses"].sent(8, 4, 1) * 2.5 / 4


def test_what_is_beside_attention_hides_the_way_in():
    forward, where = shaped_like_flux(4608), machine("PCIe 4.0 x16", 4)
    parallel = 2 / 3
    beside = replace(forward, blocks=forward.blocks._replace(overlap=forward.blocks.linear / 3), parallel=parallel)
    plan = ParallelPlan(ulysses=4)
    assert predict(beside, 1, plan, where).computing == predict(forward, 1, plan, where).computing
    waiting, without = (predict(each, 1, plan, where).waiting for each in (beside, forward))
    assert 0 < waiting < without
    assert predict(beside, 1, replace(plan, compile="on"), where).waiting == waiting
    quantised = replace(beside, plain=0.0)
    assert predict(quantised, 1, plan, where).waiting == waiting
    assert predict(quantised, 1, replace(plan, compile="on"), where).waiting == without, "compiled blocks hide none"
    ring = ParallelPlan(ring=4)
    slow = machine("PCIe 3.0 x8", 4)
    waiting, without = (predict(each, 1, ring, slow).waiting for each in (beside, forward))
    ends = slow.all_gather.seconds(forward.prediction * 3 / 4, 1)
    # Of the three waits for keys the first is shorter, and it is no longer than the others without the MLP.
    assert 1 - parallel / 3 <= (waiting - ends) / (without - ends) < 1
    both = ParallelPlan(ulysses=2, ring=2)
    waiting, without = (predict(each, 1, both, slow).waiting for each in (beside, forward))
    assert without - waiting <= beside.blocks.overlap / 4 / slow.speeds[0].linear * 1.001, "the MLP is computed once"
