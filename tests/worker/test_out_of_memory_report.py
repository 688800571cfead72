"""What a rank says when its memory runs out: only what would fit, by the numbers that it has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from parallel_backend.errors import ModelFileError, is_out_of_memory, lack_of_memory, reasons
from worker.rank.memory.device_memory import DeviceMemory, asked
from worker.rank.memory.out_of_memory import explain_lack
from worker.wire.operations import CALL, LOAD, VAE, Operation

GIB = 1 << 30


def report(operation: Operation = CALL, weights: int = 0, needed: int = 0, room: int = 24, **more: object) -> str:
    """Of a rank with `room` GiB in all, of which it has nothing but the weights when the request comes; in GiB."""
    held = 0 if operation is LOAD else weights
    empty = DeviceMemory(room * GIB, held * GIB, (room - held) * GIB)
    full = DeviceMemory(room * GIB, room * GIB - GIB, GIB)
    missing = needed - (room - held - 1)
    return str(explain_lack(1, operation, missing * GIB, full, empty, weights * GIB, **more))


def test_it_says_which_rank_what_it_asked_for_and_what_there_was() -> None:
    text = report(weights=10, needed=20, tokens=4096)
    assert "Rank 1 ran out of memory while it was running the model" in text
    assert "asked for 7.0 GiB more. It used 23.0 GiB of 24.0 GiB, and 1.0 GiB was free" in text
    assert "weights take about 10.0 GiB" in text
    assert "4,096 tokens" in text


@pytest.mark.parametrize(
    ("asked_for", "says"),
    [
        ({"operation": LOAD, "weights": 30}, "more pipefusion stages"),
        ({"weights": 4, "needed": 30, "tokens": 30_000}, "at most about 18,000 tokens fit"),
        ({"needed": 30}, "a smaller model"),
    ],
)
def test_what_helps_is_advised(asked_for: dict, says: str) -> None:
    assert says in report(**asked_for)


def test_memory_of_other_processes_is_pointed_to() -> None:
    empty, full = DeviceMemory(24 * GIB, 4 * GIB, 8 * GIB), DeviceMemory(24 * GIB, 11 * GIB, 1 * GIB)
    assert "Other processes use 12.0 GiB of this memory" in str(explain_lack(0, VAE, GIB, full, empty))


def test_the_size_that_an_allocation_was_to_have_is_read_from_the_devices_own_words() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)
    assert asked(raised.value) == 1 << 50
    assert asked(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has")) == 5 << 29
    told = "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 10.00 GiB\n"
    assert asked(torch.OutOfMemoryError(f"{told}Requested               : 2.50 GiB\nDevice limit: 1 GiB")) == 5 << 29
    assert asked(MemoryError()) is None


def test_other_errors_are_no_lack_of_memory() -> None:
    assert is_out_of_memory(OSError(12, "Cannot allocate memory"))
    assert is_out_of_memory(RuntimeError("NCCL error: Failed to CUDA calloc async 608 bytes"))
    assert is_out_of_memory(RuntimeError("Last error:\nCuda failure 2 'out of memory'"))
    assert not is_out_of_memory(RuntimeError("Connection closed by peer"))
    assert not is_out_of_memory(ModelFileError("x cannot be read"))


def caught(raising: Callable[[], None]) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: B017
        raising()
    return raised.value


def test_a_lack_of_memory_is_found_behind_a_librarys_own_error() -> None:
    def wrapped(hidden: bool = False) -> None:
        try:
            torch.empty(1 << 50, dtype=torch.uint8)
        except RuntimeError as error:
            raise SystemError("propagation failed") from (None if hidden else error)

    def handled() -> None:
        try:
            raise MemoryError
        except MemoryError:
            int("x")

    def refused() -> None:
        try:
            raise MemoryError
        except MemoryError as error:
            raise ModelFileError("no room") from error

    assert asked(lack_of_memory(caught(wrapped))) == 1 << 50
    assert is_out_of_memory(caught(handled))
    assert not is_out_of_memory(caught(lambda: wrapped(hidden=True)))
    assert not is_out_of_memory(caught(refused))
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert list(reasons(one)) == [one, other]
    assert not is_out_of_memory(one)
