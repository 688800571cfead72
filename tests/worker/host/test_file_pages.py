"""A safetensors file's tensors are views of its pages, none of which is read before somebody needs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from worker.comfyui.model import read_safetensors

SMAPS = Path("/proc/self/smaps")
TENSORS = {
    "odd": torch.arange(3, dtype=torch.uint8),
    "halves": torch.linspace(-1, 1, 35).reshape(5, 7).bfloat16(),
    "empty": torch.zeros(0, 4),
    "scalar": torch.tensor(3.0),
    "eighths": torch.linspace(-1, 1, 3).to(torch.float8_e4m3fn),
    "doubles": torch.arange(4, dtype=torch.float64),
}


def resident_kib(path: Path) -> int:
    """How much of the file is in this process's memory."""
    maps = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", SMAPS.read_text())
    found = [int(re.search(r"Rss: +(\d+) kB", each)[1]) for each in maps if str(path) in each]
    assert found, "the file is mapped"
    return sum(found)


def test_they_are_what_the_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "all.safetensors"
    save_file(TENSORS, path, {"kind": "test"})
    found, metadata = read_safetensors(path)
    assert metadata == {"kind": "test"} and {*found} == {*TENSORS}
    for name, tensor in load_file(path).items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].double(), tensor.double()), name


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux tells what is in memory")
def test_no_page_of_a_large_file_is_read(tmp_path: Path) -> None:
    path, count = tmp_path / "large.safetensors", 64
    save_file({str(number): torch.ones(1 << 16) for number in range(count)}, path)
    found, _ = read_safetensors(path)
    assert len(found) == count and resident_kib(path) == 0
    assert found["0"].sum() == 1 << 16 and resident_kib(path) > 0
