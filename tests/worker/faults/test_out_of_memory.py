"""A rank that runs out of memory fails its request with what was lacking; the group lives, and the next is served.

The memory really runs out: the rank is given a limit, a little above what it uses, while it runs.
"""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.group.direct_group import FLUX, DirectGroup, direct_group, direct_on, source_of
from tests.support.group.memory import little_memory
from worker.errors import OutOfMemory
from worker.host.client import WorkerGroup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")

SMALL, LARGE = (16, 16), (160, 160)
# So wide that a large request's hidden states, 19 MiB, dwarf all else that it has: Python does not survive where one of
# its own small allocations is what fails.
WIDE = FLUX.of_config(num_attention_heads=4)
DEADLINE = 30.0  # for a rank to fill its memory, and no watchdog's


def assert_survives(direct: DirectGroup, rank: int, run: str) -> None:
    """The request fails by the rank's name, in time; the same processes then give the exact result of before."""
    request = getattr(direct, run)
    before, pids = request(*SMALL), direct.pids()
    started = time.monotonic()
    with little_memory(pids[rank]), pytest.raises(OutOfMemory, match=f"Rank {rank} ran out of memory") as raised:
        request(*LARGE)
    assert time.monotonic() - started < DEADLINE
    assert f"{2 * math.prod(LARGE) // 4:,} tokens" in str(raised.value)
    direct.load()
    assert torch.equal(request(*SMALL), before)
    assert direct.pids() == pids


@pytest.fixture(scope="module")
def two(group_of_two: WorkerGroup, tmp_path_factory: pytest.TempPathFactory) -> DirectGroup:
    return direct_on(group_of_two, tmp_path_factory.mktemp("two"), WIDE, ulysses=2)


@pytest.mark.parametrize(("rank", "run"), [(0, "forward"), (1, "sample")])
def test_any_rank_can_run_out_of_memory_in_a_request(two: DirectGroup, rank: int, run: str) -> None:
    two.load()
    assert_survives(two, rank, run)


@pytest.mark.parametrize(("weights", "rank"), [("shared", 1), ("host", 0)])
def test_any_rank_can_run_out_of_memory_while_weights_are_on_their_way(
    two: DirectGroup, weights: str, rank: int
) -> None:
    """They are asked for before the model begins to run."""
    two.load()
    right = two.sample(*SMALL)
    direct = replace(two, plan=replace(two.plan, weights=weights))
    direct.load()
    assert torch.equal(direct.sample(*SMALL), right)
    assert_survives(direct, rank, "sample")


@pytest.mark.slow
def test_a_rank_can_run_out_of_memory_again_and_again(two: DirectGroup) -> None:
    two.load()
    held = []
    for _ in range(4):
        assert_survives(two, 1, "sample")
        held.append([len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in two.pids()])
    assert held[-1] == held[0], "what the groups cut off held is given back"


@pytest.mark.slow
def test_a_rank_that_has_no_link_to_the_failed_one_learns_of_it_too(own_ranks: None, tmp_path: Path) -> None:
    with direct_group(tmp_path, WIDE, pipefusion=2, patches=2, ulysses=2) as direct:
        assert_survives(direct, 3, "sample")


@pytest.mark.parametrize("rank", [0, 1])
def test_any_rank_can_run_out_of_memory_while_it_loads(two: DirectGroup, rank: int, tmp_path: Path) -> None:
    two.load()
    before, pids = two.forward(*SMALL), two.pids()
    deep = two.family.of_config(num_layers=4)
    other = replace(two, source=source_of(deep, tmp_path / "deep")).in_memory()
    two.group.park(unload=True)  # or the memory of the model before would be room for this one
    room = sum(map(os.path.getsize, other.source.files)) * 2 // 5  # less than half of fp32
    with little_memory(pids[rank], room), pytest.raises(OutOfMemory, match=f"Rank {rank} .* loading a model") as raised:
        other.load()
    assert "The model's weights take about" in str(raised.value)
    other.load()
    two.load()
    assert torch.equal(two.forward(*SMALL), before)
    assert two.pids() == pids


def test_a_lack_of_memory_in_a_request_that_was_given_up_is_known_to_the_next(two: DirectGroup) -> None:
    two.load()
    before, pids = two.forward(*SMALL), two.pids()

    def give_up() -> None:
        if two.group.session.operation == "call":
            raise InterruptedError

    with little_memory(pids[1]):
        with pytest.raises(InterruptedError):
            two.call(*two.family.inputs(2, *LARGE), give_up)
        two.group.trace()  # which waits for its end
    two.load()
    assert torch.equal(two.forward(*SMALL), before)
    assert two.pids() == pids
