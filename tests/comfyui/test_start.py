"""A rank imports what the model at hand needs, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.start import in_process
from tests.support.programs import run_program

MEDIA = {"torchaudio", "av", "kornia", "spandrel", "comfy.sd"}


def test_a_rank_that_waits_has_imported_neither_diffusers_nor_comfyui(own_ranks: None) -> None:
    assert in_process("a rank that waits")["imported"] == []


def test_a_file_by_comfyuis_own_class_needs_no_diffusers_and_no_media_package(
    comfyui: Path, own_ranks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ComfyUI's classes themselves import transformers and torchvision."""
    monkeypatch.setenv("COMFYUI_PATH", str(comfyui))
    run_program(comfyui, "tests.support.files.write_stock_models", tmp_path, "krea-2")
    imported = in_process("a rank with a file by ComfyUI's class", str(tmp_path / "krea-2.safetensors"))["imported"]
    assert "comfy" in imported
    assert {"diffusers", *MEDIA}.isdisjoint(imported)
