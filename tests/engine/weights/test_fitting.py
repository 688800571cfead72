"""What an automatic plan makes of the weights: whole where they fit, else the fewest blocks over the faster link."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from parallel_backend.errors import PlanError
from parallel_backend.plan import AUTO, HOST, MEMORY, SHARED, TIME, WHOLE, ParallelPlan
from parallel_backend.weights.fitting import (
    Links,
    WeightRoom,
    count_host_bytes,
    estimate_fetch_seconds,
    fit_fewest_blocks,
    fit_stages,
    fit_weights,
)
from parallel_backend.weights.sizes import BUFFERS, WeightSizes, fetched_blocks

GB = 10**9
PLENTY = 1000 * GB
# As Flux.1 dev is in bf16: 19 blocks of two streams, 38 of one.
FLUX = WeightSizes(rest=GB // 2, blocks=(680_000_000,) * 19 + (283_000_000,) * 38)
EVEN = WeightSizes(rest=GB, blocks=(GB // 4,) * 40)
PEERS_FASTER, HOST_FASTER = Links(peers=50 * GB, host=10 * GB), Links(peers=1 * GB, host=25 * GB)
TWO = ParallelPlan(ulysses=2)


def kept(plan: ParallelPlan, sizes: WeightSizes) -> int:
    return max(sizes.count_resident_bytes(plan))


def test_weights_that_fit_stay_whole() -> None:
    exactly = WeightRoom(FLUX.total, 0)
    assert fit_weights(TWO, FLUX, exactly) == replace(TWO, weights=WHOLE)
    assert fit_weights(TWO, FLUX, WeightRoom(FLUX.total - 1, PLENTY)).weights != WHOLE


@pytest.mark.parametrize("links", [PEERS_FASTER, HOST_FASTER], ids=["peers", "host"])
@pytest.mark.parametrize("sizes", [FLUX, EVEN], ids=["flux", "even"])
@pytest.mark.parametrize("share", [0.95, 0.8, 0.6])
def test_what_does_not_fit_goes_in_the_fewest_blocks(sizes: WeightSizes, share: float, links: Links) -> None:
    room = WeightRoom(int(share * sizes.total), PLENTY)
    found = fit_weights(TWO, sizes, room, links)
    assert found.weights in (SHARED, HOST)
    assert kept(found, sizes) <= room.device
    fewer = [replace(found, weight_blocks=count) for count in range(1, found.weight_blocks)]
    assert all(kept(each, sizes) > room.device for each in fewer)


@pytest.mark.parametrize(("links", "faster"), [(PEERS_FASTER, SHARED), (HOST_FASTER, HOST)])
def test_the_link_that_brings_them_sooner_wins(links: Links, faster: str) -> None:
    """Of two ranks, more blocks have to be shared than put in the host's memory for the same room, since each keeps
    half of them; but half of a block need not come, either."""
    room = WeightRoom(int(0.8 * EVEN.total), PLENTY)
    found = fit_weights(TWO, EVEN, room, links)
    assert found.weights == faster
    other = fit_fewest_blocks(replace(TWO, weights=HOST if faster == SHARED else SHARED), EVEN, room)
    assert other
    assert estimate_fetch_seconds(found, EVEN, links) < estimate_fetch_seconds(other, EVEN, links)


def test_a_rank_without_others_like_it_has_the_host_alone() -> None:
    room = WeightRoom(EVEN.total // 2, PLENTY)
    for plan in (ParallelPlan(), ParallelPlan(pipefusion=2)):
        small = replace(room, device=kept(plan, EVEN) * 2 // 3)
        assert fit_weights(plan, EVEN, small, PEERS_FASTER).weights == HOST
    with pytest.raises(PlanError, match="has no two that do"):
        ParallelPlan(pipefusion=2, weights=SHARED).check_weights()


def test_a_host_without_room_leaves_the_peers_even_where_they_are_slower() -> None:
    device = int(0.8 * EVEN.total)
    by_host = fit_weights(TWO, EVEN, WeightRoom(device, PLENTY), HOST_FASTER)
    assert by_host.weights == HOST
    too_small = WeightRoom(device, count_host_bytes(by_host, EVEN) - 1)
    assert fit_weights(TWO, EVEN, too_small, HOST_FASTER).weights == SHARED
    assert fit_weights(TWO, EVEN, replace(too_small, host=too_small.host + 1), HOST_FASTER) == by_host


def test_where_nothing_fits_as_much_goes_as_can() -> None:
    found = fit_weights(TWO, EVEN, WeightRoom(0, PLENTY), PEERS_FASTER)
    assert (found.weights, found.weight_blocks) == (HOST, 40)
    assert kept(found, EVEN) == EVEN.rest + BUFFERS * max(EVEN.blocks)
    assert fit_weights(TWO, EVEN, WeightRoom(0, 0)).weights == SHARED, "the host has no room at all"
    assert fit_weights(ParallelPlan(), EVEN, WeightRoom(0, 0)).weights == WHOLE, (
        "what is too much for the host is not tried there"
    )
    assert fit_weights(TWO, WeightSizes(rest=GB), WeightRoom(0, 0)).weights == WHOLE, (
        "a class whose blocks nobody knows"
    )


@pytest.mark.parametrize("weights", [WHOLE, SHARED, HOST])
def test_what_was_asked_for_is_what_there_is(weights: str) -> None:
    asked = replace(TWO, weights=weights, weight_blocks=3)
    assert fit_weights(asked, FLUX, WeightRoom(0, 0)) == asked
    assert fit_weights(asked, FLUX, WeightRoom(PLENTY, PLENTY)) == asked


def test_stages_fit_what_is_theirs() -> None:
    plan = ParallelPlan(pipefusion=2, ulysses=2)
    stages = EVEN.by_stage(plan)
    assert fit_weights(plan, EVEN, WeightRoom(EVEN.rest + max(map(sum, stages)), 0)).weights == WHOLE
    room = WeightRoom(EVEN.rest + max(map(sum, stages)) * 3 // 4, PLENTY)
    found = fit_weights(plan, EVEN, room, HOST_FASTER)
    assert found.weights == HOST
    assert kept(found, EVEN) <= room.device < kept(replace(found, weight_blocks=found.weight_blocks - 1), EVEN)
    # The host has one copy of what all stages have in it.
    once = sum(sum(stage[place] for place in fetched_blocks(stage, found)) for stage in stages)
    assert count_host_bytes(found, EVEN) == once


def test_fetched_blocks_are_spread_evenly() -> None:
    for count, blocks in itertools.product(range(1, 58), (57, 58, 60)):
        places = fetched_blocks([GB] * blocks, replace(TWO, weights=SHARED, weight_blocks=count))
        assert len(set(places)) == count
        gaps = [after - before for before, after in itertools.pairwise([*places, blocks])]
        assert max(gaps) - min(gaps) <= 1
    assert fetched_blocks([GB] * 4, replace(TWO, weights=HOST, weight_blocks=9)) == [0, 1, 2, 3]
    assert fetched_blocks([GB] * 4, replace(TWO, weights=AUTO)) == []


def test_stages_are_balanced_by_memory_only_where_those_of_equal_time_do_not_fit() -> None:
    """Of Flux's two stages of equal time, the first has 19 blocks of two streams, and keeps 65 % of the bytes."""
    staged = ParallelPlan(pipefusion=2)
    by_memory = replace(staged, balance=MEMORY)
    needed = [max(FLUX.count_resident_bytes(each)) for each in (staged, by_memory)]
    assert needed[0] > 1.2 * needed[1]
    assert fit_stages(staged, FLUX, WeightRoom(needed[0], PLENTY)) == staged
    assert fit_stages(staged, FLUX, WeightRoom(needed[0] - 1, PLENTY)) == by_memory
    for own_way in (replace(staged, balance=TIME), replace(staged, speeds=(2, 1)), replace(staged, weights=HOST), TWO):
        assert fit_stages(own_way, FLUX, WeightRoom(needed[1], PLENTY)) == own_way
    assert str(by_memory) == "pipefusion=2 × 2 patches, 1 sync × stages by memory"
