"""The folder of a class-conditional DiT: which of its files are read. `tests/comfyui/test_bad_input.py` and
`tests/attack/test_model_files.py` have broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.comfyui.source import weight_files


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
