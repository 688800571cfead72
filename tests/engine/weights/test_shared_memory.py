"""Memory that processes share is given back when a much shorter content follows a long one."""

from __future__ import annotations

import os

import pytest

from parallel_backend.weights import shared_memory
from parallel_backend.weights.shared_memory import IS_SHAREABLE, SharedMemory

MEBI = 1 << 20


@pytest.mark.skipif(not IS_SHAREABLE, reason="memfd is Linux's")
def test_a_long_content_leaves_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "KEPT", 4 * MEBI)
    memory = SharedMemory.create("test")

    def held() -> int:
        return os.fstat(memory.descriptor).st_blocks * 512

    memory.view(16 * MEBI)[:] = b"1" * 16 * MEBI
    assert held() == 16 * MEBI
    short = memory.view(2 * MEBI + 5)
    assert bytes(short) == b"1" * (2 * MEBI + 5), "what is asked for stays"
    assert held() <= 3 * MEBI
    again = memory.view(16 * MEBI)
    again[:] = b"2" * 16 * MEBI
    assert bytes(again) == b"2" * 16 * MEBI
    memory.view(13 * MEBI)
    assert held() == 16 * MEBI, "a little more is kept for the next time"
    memory.map = None
