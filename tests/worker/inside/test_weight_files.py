"""Weights that ranks read from the file that a node has read them from, in place of getting them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from worker.errors import ModelFileError
from worker.inside.weight_files import NotedFiles, OpenFiles

SHAPE = (128, 256)


def weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(*SHAPE, generator=generator) for name in ("c", "a", "b")}


def write(file: Path, found: dict[str, torch.Tensor]) -> str:
    save_file(found, file)
    return str(file)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_weight_is_found_by_its_numbers_as_it_was_cast(dtype: torch.dtype, tmp_path: Path) -> None:
    noted, found = NotedFiles(), weights(1)
    noted.note(write(tmp_path / "one.safetensors", found))
    noted.note(write(tmp_path / "another.safetensors", weights(2)))
    noted.note(str(tmp_path / "none.safetensors"))
    (tmp_path / "text.ckpt").write_text("no tensors")
    noted.note(str(tmp_path / "text.ckpt"))
    weight = torch.nn.Parameter(found["b"].to(dtype), requires_grad=False)
    place = noted.find(weight)
    assert place and place["path"].endswith("one.safetensors")
    read = OpenFiles().read(**place)
    assert read.dtype == dtype and read.float().equal(weight.float())


def test_a_weight_that_a_node_has_changed_is_not_taken_from_its_file(tmp_path: Path) -> None:
    noted, found = NotedFiles(), weights(1)
    noted.note(write(tmp_path / "one.safetensors", found))
    assert noted.find(found["a"].clone())
    changed = found["a"].clone()
    changed[-1, -1] += 1
    assert noted.find(changed) is None
    assert noted.find(found["a"].T) is None
    assert noted.find(found["a"][:1]) is None


def test_a_file_that_is_overwritten_is_not_read(tmp_path: Path) -> None:
    noted, found = NotedFiles(), weights(1)
    file = write(tmp_path / "one.safetensors", found)
    noted.note(file)
    place = noted.find(found["a"])
    noted.close()
    assert place
    write(tmp_path / "one.safetensors", weights(2))
    assert noted.find(weights(2)["a"]) is None  # nobody has read it since
    with pytest.raises(ModelFileError, match="was overwritten after it was loaded"):
        OpenFiles().read(**place)
    noted.note(file)
    assert noted.find(weights(2)["a"])
