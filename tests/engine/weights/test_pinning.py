"""Host memory is pinned by pieces beside other work, and a system that refuses costs time alone.

On the CPU in place of a card, with CUDA's functions replaced.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from parallel_backend import device
from parallel_backend.device import Pinner
from parallel_backend.errors import format_bytes
from parallel_backend.weights import parking as parking_module
from parallel_backend.weights import read_ahead
from parallel_backend.weights.flat_block import FlatBlock, Values
from parallel_backend.weights.host_memory import HostMemory
from parallel_backend.weights.parking import Parking
from parallel_backend.weights.shared_memory import SharedMemory
from parallel_backend.weights.stores import HostStore
from parallel_backend.weights.tensors import PAGE
from tests.support.cases.fetched_cases import BLOCKS, CPU, Model, fetched_of, is_right

SECONDS = 20.0


class Runtime:
    """CUDA's. fails_from: the number of the first piece that it refuses. before: called with each piece's number,
    address and bytes. pinned: bytes by address. tried: how many pieces. threads: that called it."""

    cudaError = SimpleNamespace(success=0)  # noqa: N815 (CUDA's name)

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.tried, self.fails_from = 0, BLOCKS
        self.threads: set[str] = set()
        self.current: set[str] = set()  # threads whose card has been chosen
        self.before: Callable[[int, int, int], object] = lambda *_: None

    def make_current(self, _device: torch.device) -> None:
        self.current.add(threading.current_thread().name)

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:  # noqa: N802 (CUDA's name)
        number, self.tried = self.tried, self.tried + 1
        self.threads.add(threading.current_thread().name)
        self.before(number, address, size)
        if number >= self.fails_from:
            return 2
        self.pinned[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802 (CUDA's name)
        del self.pinned[address]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    found = Runtime()
    monkeypatch.setattr(device, "has_cuda", lambda _: True)
    monkeypatch.setattr(device, "make_current", found.make_current)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: found)
    device.warn_of_refusal.cache_clear()
    return found


def test_a_block_is_pinned_while_the_next_are_read(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning a block does not end before the next is read, and the load ends when all are pinned."""
    monkeypatch.setattr(read_ahead, "AHEAD", 0)
    reads = [threading.Event() for _ in range(BLOCKS)]

    def values(row: FlatBlock) -> Values:
        reads[int(row.path.rpartition(".")[2])].set()
        return row.block.get_parameter

    runtime.before = lambda number, *_: reads[min(number + 1, BLOCKS - 1)].wait(SECONDS) or pytest.fail("not read")
    model = Model()
    fetched = fetched_of(model)
    store = HostStore(fetched.sizes, CPU, HostMemory(HostStore.total(fetched.sizes)))
    fetched.rearrange(range(BLOCKS), store, values)
    assert len(runtime.pinned) == BLOCKS
    assert runtime.threads == runtime.current and threading.current_thread().name not in runtime.threads
    total = sum(block.nbytes for block in store.blocks.values())
    assert store.pinner and (store.pinner.pinned, store.pinner.refused) == (total, 0) and store.pinner.seconds > 0
    assert f"{format_bytes(total)} of {format_bytes(total)} of RAM pinned in" in str(store.pinner)
    assert is_right(model, fetched)
    fetched.rearrange((), None)
    gc.collect()
    assert not runtime.pinned


def test_no_two_pieces_share_a_page(runtime: Runtime) -> None:
    """Not even in memory that the rank has for itself, which may begin anywhere."""
    fetched = fetched_of(Model())
    store = HostStore(fetched.sizes, CPU, HostMemory(HostStore.total(fetched.sizes)))
    fetched.rearrange(range(BLOCKS), store)
    spans = [range(start // PAGE, -(-(start + size) // PAGE)) for start, size in runtime.pinned.items()]
    pages = [page for span in spans for page in span]
    assert len(pages) == len(set(pages)) >= BLOCKS


def test_a_refusal_is_said_once_and_the_load_goes_on_unpinned(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.fails_from = 2
    for _ in range(2):
        runtime.tried = 0
        model = Model()
        fetched = fetched_of(model)
        store = HostStore(fetched.sizes, CPU, HostMemory(HostStore.total(fetched.sizes)))
        fetched.rearrange(range(BLOCKS), store)
        assert runtime.tried == runtime.fails_from + 1, "what comes after a refusal is not tried"
        sizes = [block.nbytes for block in store.blocks.values()]
        assert store.pinner and (store.pinner.pinned, store.pinner.refused) == (sum(sizes[:2]), sum(sizes[2:]))
        assert is_right(model, fetched)
        del store, fetched, model
        gc.collect()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "ulimit -l" in warnings[0]


def test_memory_that_is_given_up_meanwhile_is_not_pinned(runtime: Runtime) -> None:
    goes_on = threading.Event()
    runtime.before = lambda *_: goes_on.wait(SECONDS)
    pinner = Pinner(CPU)
    kept, given_up = torch.zeros(PAGE, dtype=torch.uint8), torch.zeros(PAGE, dtype=torch.uint8)
    pinner.add(kept)
    pinner.add(given_up)
    del given_up
    goes_on.set()
    pinner.wait()
    assert runtime.pinned == {kept.data_ptr(): PAGE} and runtime.tried == 1


def test_weights_are_parked_in_pieces_while_the_next_are_pinned(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(parking_module, "PIECE", PAGE)
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 64) for _ in range(6)))  # of 8 KB each
    before = [parameter.clone() for parameter in model.parameters()]
    parking = Parking(model, CPU)
    shared = SharedMemory.create("test")
    memory, own = HostMemory(parking.size, shared), torch.frombuffer(shared.view(parking.size), dtype=torch.uint8)
    first = parking.cut()[0]

    def is_copied(number: int, *_: int) -> None:
        deadline = threading.Event()
        for _ in range(int(SECONDS / 0.01)):
            if not number or own[: first.size].any():
                return
            deadline.wait(0.01)
        pytest.fail("the first piece is not copied")

    runtime.before, runtime.fails_from = is_copied, 100
    parking.copy(memory)
    assert len(runtime.pinned) == len(parking.pieces) > 3
    assert all(address % PAGE == 0 for address in runtime.pinned)
    assert sum(runtime.pinned.values()) <= parking.size == memory.size
    for _ in range(2):
        parking.free_device()
        parking.fill_device()
        assert all(now.equal(then) for now, then in zip(model.parameters(), before, strict=True))
    tried = runtime.tried
    parking.copy(memory)
    assert runtime.tried == tried, "what is pinned stays so for the next time"
    assert caplog.text.count(" of RAM pinned in") == 1
    monkeypatch.setattr(parking_module, "available_ram_bytes", lambda: 0)
    parking.end()
    del memory
    gc.collect()
    assert not runtime.pinned
