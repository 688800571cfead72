"""What trips up those who fetch weights block by block: each has a small model that has it."""

from __future__ import annotations

import random

import pytest
import torch

from parallel_backend.errors import RequestError
from parallel_backend.weights.flat_block import FlatBlock
from parallel_backend.weights.host_memory import HostMemory
from parallel_backend.weights.parking import Parking
from parallel_backend.weights.stores import HostStore
from parallel_backend.weights.tensors import ALIGNMENT, align, list_storages
from tests.support.cases.fetched_cases import BLOCKS, CPU, SHARED, WIDTH, Model, fetched_of, given, host_store, run
from tests.support.ranks.pool import RankPool

EVERY = range(BLOCKS)


def whole() -> torch.Tensor:
    with torch.inference_mode():
        return Model()(given())


def row_of(model: Model, place: int) -> FlatBlock:
    return fetched_of(model).flatten_blocks([place])[place]


@pytest.mark.parametrize("is_late", [True, False], ids=["late", "at once"])
@pytest.mark.parametrize("places", [EVERY, [0], [1, 3], [4]], ids=str)
def test_fetched_blocks_compute_as_whole_ones_whenever_they_arrive(places: list[int], is_late: bool) -> None:
    model = Model()
    fetched = fetched_of(model)
    store = host_store(fetched, is_late)
    fetched.rearrange(places, store)
    for _ in range(2):
        store.fetched.clear()
        got = run(model, fetched, given())
        assert got is not None and got.equal(whole())
        assert store.fetched == list(places)
    fetched.rearrange((), None)
    with torch.inference_mode():
        assert model(given()).equal(whole())


def test_what_is_read_outside_of_its_block_or_tied_to_another_stays_whole() -> None:
    model = Model()
    before = dict(model.named_parameters(remove_duplicate=False))
    fetched = fetched_of(model)
    fetched.rearrange(EVERY, host_store(fetched))
    names = {name for name, _, _ in fetched.names()}
    shared = {f"{path}.{name}" for path in SHARED for name in ("weight", "bias")}
    assert not names & (shared | {"blocks.0.tied", "blocks.3.tied"})
    assert "blocks.2.tied" in names and "blocks.0.norm.weight" in names
    assert model.blocks[0].tied is model.blocks[3].tied is before["blocks.0.tied"]
    held = {buffer.untyped_storage().data_ptr() for buffer in fetched.buffers}
    own = {name: each.untyped_storage().data_ptr() in held for name, each in model.named_parameters() if each.numel()}
    assert {name for name, is_fetched in own.items() if is_fetched} == names


def test_a_row_is_written_by_any_parts_of_it() -> None:
    """As several ranks write theirs: a cut falls into a weight, or between two."""
    model, dice = Model(), random.Random(0)
    row = row_of(model, 2)
    size = align(row.size)
    right = torch.zeros(size, dtype=torch.uint8)
    row.write(right, 0, row.block.get_parameter)
    assert row.size > 3 * ALIGNMENT and right.any()
    for _ in range(20):
        inner = sorted(dice.sample(range(ALIGNMENT, size, ALIGNMENT), 2))
        made = torch.zeros(size, dtype=torch.uint8)
        for start, stop in zip((0, *inner), (*inner, size), strict=True):
            row.write(made[start:stop], start, row.block.get_parameter)
        assert made.equal(right)
    asked = []

    def values(name: str) -> torch.Tensor:
        asked.append(name)
        return row.block.get_parameter(name)

    row.write(torch.zeros(ALIGNMENT, dtype=torch.uint8), 0, values)
    assert asked == row.names[:1], "others are not read"


def test_writers_of_one_copy_write_all_of_it_and_nothing_twice() -> None:
    model = Model()
    fetched = fetched_of(model)
    row, sizes = fetched.flatten_blocks([2])[2], fetched.sizes
    right = HostStore(sizes, CPU)
    right.allocate(2, row)
    right.write(2, row, row.block.get_parameter)
    summed = torch.zeros(align(row.size), dtype=torch.uint8)
    for place in range(3):
        store = HostStore(sizes, CPU, HostMemory(HostStore.total(sizes), place=place, writers=3))
        store.allocate(2, row)
        store.blocks[2].zero_()
        store.write(2, row, row.block.get_parameter)
        assert not (summed.bool() & store.blocks[2].bool()).any()
        summed += store.blocks[2]
    written = torch.zeros_like(summed)
    row.write(written, 0, row.block.get_parameter)
    assert summed.equal(written)


def test_a_block_that_a_node_skips_is_passed_over() -> None:
    for skipped in ([0], [1, 2], [4], list(EVERY)):
        model, plain = Model(), Model()
        model.skipped = plain.skipped = skipped
        fetched = fetched_of(model)
        store = host_store(fetched)
        fetched.rearrange(EVERY, store)
        got = run(model, fetched, given())
        with torch.inference_mode():
            assert got is not None and got.equal(plain(given()))
        assert store.fetched == list(EVERY)
        model.skipped = ()
        again = run(model, fetched, given())
        assert again is not None and again.equal(whole())


@pytest.mark.parametrize("place", [0, 2, BLOCKS - 1])
def test_a_block_that_a_node_runs_twice_is_refused_by_name_and_the_next_forward_is_right(place: int) -> None:
    model = Model()
    fetched = fetched_of(model)
    fetched.rearrange(EVERY, host_store(fetched))
    model.again = place
    with pytest.raises(RequestError, match="has the model run a Block out of turn") as refused:
        run(model, fetched, given())
    assert "weights=whole" in str(refused.value)
    model.again = -1
    got = run(model, fetched, given())
    assert got is not None and got.equal(whole())


def test_a_forward_that_ends_early_or_fails_leaves_the_next_right() -> None:
    model = Model()
    fetched = fetched_of(model)
    store = host_store(fetched)
    fetched.rearrange(EVERY, store)
    for place in (0, 2, BLOCKS - 1):
        store.fetched.clear()
        model.ends_after = place
        assert run(model, fetched, given()) is None
        assert store.fetched == list(EVERY), "other ranks wait for all of them"
        model.ends_after = -1
        with pytest.raises(RuntimeError):
            run(model, fetched, given()[:, 1:])
        got = run(model, fetched, given())
        assert got is not None and got.equal(whole())


def test_buffers_that_are_made_in_inference_mode_are_written_outside_of_it() -> None:
    model = Model()
    fetched = fetched_of(model)
    with torch.inference_mode():
        fetched.rearrange(EVERY, host_store(fetched))
    assert not any(buffer.is_inference() for buffer in fetched.buffers)
    with torch.no_grad(), fetched.forward():
        assert model(given()).equal(whole())


def test_a_weight_that_others_made_anew_is_bound_again() -> None:
    model = Model()
    fetched = fetched_of(model)
    fetched.rearrange(EVERY, host_store(fetched))
    for block in model.blocks:
        block.linear.weight = torch.nn.Parameter(torch.full((WIDTH, WIDTH), torch.nan), requires_grad=False)
    fetched.rebind()
    got = run(model, fetched, given())
    assert got is not None and got.equal(whole())


def test_a_rewritten_weight_alone_is_another() -> None:
    model, plain = Model(), Model()
    fetched = fetched_of(model)
    fetched.rearrange(EVERY, host_store(fetched))
    other = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(2))
    original = plain.blocks[2].linear.weight.clone()
    for value in (other, original):
        fetched.rewrite(2, "linear.weight", value)
        plain.blocks[2].linear.weight.data = value
        got = run(model, fetched, given())
        with torch.inference_mode():
            assert got is not None and got.equal(plain(given()))


@pytest.mark.parametrize("places", [EVERY, [1, 3]], ids=str)
def test_parking_frees_the_buffers_and_does_not_copy_them(places: list[int]) -> None:
    model = Model()
    fetched = fetched_of(model)
    parking = Parking(model, CPU)
    everything = parking.size
    fetched.rearrange(places, host_store(fetched))
    fetched.park_with(parking)
    going = {name for name, _, _ in fetched.names()}
    rest = sum(align(held.nbytes) for name, held in model.named_parameters() if name not in going)
    assert parking.size == rest < everything
    for _ in range(2):
        parking.copy()
        parking.free_device()
        assert not list_storages(model, CPU, [*parking.extra, *parking.scratch])
        parking.restore()
        got = run(model, fetched, given())
        assert got is not None and got.equal(whole())


def test_all_ranks_ask_for_the_same_in_the_same_order_whatever_one_of_them_does(
    ranks: RankPool,
) -> None:
    """Skips blocks, ends early, or has no rows: else the others would wait for it for ever."""
    first, second = ranks.run(2, "weights.order_ranks")
    assert first.keys() == second.keys() == {"nothing", "skips", "ends early", "no rows"}
    for name in first:
        assert first[name]["asked"] == second[name]["asked"], name
        assert first[name]["asked"] == [*EVERY] * (len(first[name]["asked"]) // BLOCKS) != [], name
        assert all(first[name]["right"] + second[name]["right"]), name
