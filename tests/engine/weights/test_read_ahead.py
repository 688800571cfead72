"""The system reads a file's bytes before a rank touches them, and not too many at a time."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from parallel_backend.weights import read_ahead as module
from parallel_backend.weights.read_ahead import STEP, ask_for, read_ahead
from parallel_backend.weights.tensors import PAGE

SECONDS = 20.0


def test_items_come_in_order_and_only_so_many_bytes_are_asked_for_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module, "ask_for", lambda tensor: asked.append(tensor.nbytes) or tensor.nbytes)
    monkeypatch.setattr(module, "AHEAD", 100)
    sizes = [40, 40, 200, 0, 40, 40]
    items = read_ahead(range(len(sizes)), lambda index: [torch.zeros(sizes[index], dtype=torch.uint8)])
    assert [(index, len(asked)) for index in items] == [(0, 3), (1, 3), (2, 3), (3, 6), (4, 6), (5, 6)]
    assert asked == sizes


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux's C library")
def test_the_system_reads_what_it_is_asked_for_and_nobody_touches(tmp_path: Path) -> None:
    file, size = tmp_path / "values.safetensors", 8 << 20
    save_file({"values": torch.ones(size, dtype=torch.uint8)}, file)
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with safe_open(file, framework="pt") as opened:
        values = opened.get_tensor("values")
        start = -(-values.data_ptr() // PAGE) * PAGE
        pages = size // PAGE - 1
        seen = (ctypes.c_ubyte * pages)()

        def cached() -> int:
            assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * PAGE), seen)
            return sum(each & 1 for each in seen)

        before = cached()
        assert ask_for(values) == size > 16 * STEP
        deadline = time.monotonic() + SECONDS
        while cached() < pages and time.monotonic() < deadline:
            time.sleep(0.1)
            ask_for(values)  # a busy system leaves a page out now and then; what it cuts off, it does so each time
        assert cached() == pages, f"{before} of {pages} pages before"
    assert ask_for(torch.empty(8, device="meta")) == 0
