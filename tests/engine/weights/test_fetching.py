"""What trips up those who fetch weights block by block: each has a small model that has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.host_memory import HostMemory
from parallel_backend.weights.parking import Parking
from parallel_backend.weights.prefetcher import BlockPrefetcher
from parallel_backend.weights.tensors import align, count_bytes, list_storages
from tests.support.cases.families import FAMILIES
from tests.support.cases.fetched_cases import (
    BLOCKS,
    CPU,
    SHARED,
    Model,
    fetched_of,
    given,
    host_store,
    is_right,
    whole,
)
from tests.support.family_model import FamilyModel
from tests.support.ranks.pool import RankPool

EVERY = range(BLOCKS)


def fetching() -> tuple[Model, BlockPrefetcher]:
    """A model whose blocks are all fetched."""
    model = Model()
    fetched = fetched_of(model)
    fetched.rearrange(EVERY, host_store(fetched))
    return model, fetched


@pytest.mark.parametrize("is_late", [True, False], ids=["late", "at once"])
@pytest.mark.parametrize("places", [EVERY, [0], [1, 3], [4]], ids=str)
def test_fetched_blocks_compute_as_whole_ones_whenever_they_arrive(places: list[int], is_late: bool) -> None:
    model = Model()
    fetched = fetched_of(model)
    store = host_store(fetched, is_late)
    fetched.rearrange(places, store)
    for _ in range(2):
        store.fetched.clear()
        assert is_right(model, fetched)
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


@pytest.mark.parametrize("place", [0, 2, BLOCKS - 1])
def test_a_block_that_a_node_runs_twice_is_refused_by_name_and_the_next_forward_is_right(place: int) -> None:
    model, fetched = fetching()
    model.again = place
    with pytest.raises(RequestError, match="has the model run a Block out of turn") as refused:
        is_right(model, fetched)
    assert "weights=whole" in str(refused.value)
    model.again = -1
    assert is_right(model, fetched)


def test_buffers_that_are_made_in_inference_mode_are_written_outside_of_it() -> None:
    model = Model()
    fetched = fetched_of(model)
    with torch.inference_mode():
        fetched.rearrange(EVERY, host_store(fetched))
    assert not any(buffer.is_inference() for buffer in fetched.buffers)
    with torch.no_grad(), fetched.forward():
        assert model(given()).equal(whole())


def test_a_weight_that_others_made_anew_is_bound_again() -> None:
    model, fetched = fetching()
    for block in model.blocks:
        block.linear.weight = torch.nn.Parameter(torch.full_like(block.linear.weight, torch.nan), requires_grad=False)
    fetched.rebind()
    assert is_right(model, fetched)


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
        parking.copy(HostMemory(parking.size))
        parking.free_device()
        assert not list_storages(model, CPU, [*parking.extra, *parking.scratch])
        parking.fill_device()
        parking.end()
        assert is_right(model, fetched)


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


def test_weights_that_are_not_read_yet_take_no_memory(one_rank: None, tmp_path: Path) -> None:
    """Else a script's weights=auto would take the size of the model for room that is left for it."""
    family = FAMILIES["dit"]
    model = FamilyModel.build(family.source(family.save(tmp_path)), build_mesh(ParallelPlan(), CPU))
    assert model.resident_bytes == 0
    model.bring((), None)
    assert model.resident_bytes == count_bytes(model.model) > 0
