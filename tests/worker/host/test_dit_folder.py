"""The folder of a class-conditional DiT: which of its files are read. `tests/comfyui/test_bad_input.py` and
`tests/attack/test_model_files.py` have broken ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from demo.host import REPOSITORY
from worker.comfyui.dit.folder import is_dit
from worker.comfyui.source import weight_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the demo model without its weights."""
    model = tmp_path / "dit"
    shutil.copytree(REPOSITORY / "demo" / "shapes-dit", model, ignore=shutil.ignore_patterns("*.safetensors"))
    return model


def change(folder: Path, **values: Any) -> None:
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_an_old_folder_is_told_by_its_norm(folder: Path) -> None:
    change(folder, _class_name="Transformer2DModel")
    assert is_dit(folder)
    change(folder, norm_type="ada_norm_single")
    assert not is_dit(folder)


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
