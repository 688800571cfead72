"""The files with a model's weights: which of a folder are read, that no page is read before somebody needs it, and how
a file is told from one that overwrites it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from worker.comfyui.model import read_safetensors
from worker.comfyui.source import weight_files
from worker.errors import ModelFileError
from worker.wire.file_marks import PIECE_BYTES, PIECES, check_mark, mark_files

SMAPS = Path("/proc/self/smaps")
SIZE = 4 * PIECES * PIECE_BYTES  # of a file, of which its mark has these pieces
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


def test_the_tensors_of_a_file_are_what_the_library_reads(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("there", "read"),
    [
        (("diffusion_pytorch_model", "diffusion_pytorch_model.fp16"), ("diffusion_pytorch_model",)),
        (("model-1-of-2", "model-2-of-2"), ("model-1-of-2", "model-2-of-2")),
        (
            ("diffusion_pytorch_model-1-of-2", "diffusion_pytorch_model-2-of-2", "diffusion_pytorch_model.fp16"),
            ("diffusion_pytorch_model-1-of-2", "diffusion_pytorch_model-2-of-2"),
        ),
        ((), ()),
    ],
    ids=["a variant beside it", "names of its own", "shards and a variant", "none"],
)
def test_of_a_folder_one_set_of_weights_is_read(there: tuple[str, ...], read: tuple[str, ...], tmp_path: Path) -> None:
    for name in there:
        (tmp_path / f"{name}.safetensors").touch()
    assert weight_files(tmp_path) == [tmp_path / f"{name}.safetensors" for name in read]


def test_a_file_that_differs_where_no_piece_is_read_has_another_mark(tmp_path: Path) -> None:
    """As one that a training has written anew, of which some blocks have not changed."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(SIZE))
    os.utime(file, (1000, 1000))
    mark = mark_files([file])
    check_mark(file, [file], mark)
    contents = bytearray(SIZE)
    contents[2 * PIECE_BYTES] = 1
    file.write_bytes(contents)
    assert mark_files([file]) != mark
    with pytest.raises(ModelFileError, match="was overwritten after it was loaded"):
        check_mark(file, [file], mark)


def test_on_another_machine_a_copy_may_be_older_but_not_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, copied = tmp_path / "model.safetensors", tmp_path / "copy.safetensors"
    file.write_bytes(bytes(SIZE))
    shutil.copyfile(file, copied)
    os.utime(copied, (1000, 1000))
    mark = mark_files([file])
    monkeypatch.setenv("GROUP_RANK", "1")
    check_mark(file, [copied], mark)
    copied.write_bytes(bytes(SIZE - 1))
    with pytest.raises(ModelFileError, match="is another model now"):
        check_mark(file, [copied], mark)
