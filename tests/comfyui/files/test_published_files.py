"""A file of published proportions is what its class needs, by a spec, with every parameter."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests.support.cases.files.published_cases import PUBLISHED
from tests.support.programs import run_program

# Where there is such a folder, it is in memory: of a file on a disk, the system reads ahead many MiB, even of holes.
MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def found(comfyui: Path) -> dict[str, dict | str]:
    """By file, what the loader finds in it, see describe_files."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        run_program(comfyui, "tests.support.files.write_headers", folder)
        said = run_program(comfyui, "tests.support.files.describe_files", *sorted(Path(folder).iterdir()))
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_one_whose_tokens_can_be_shared(name: str, found: dict) -> None:
    expected = {"class": PUBLISHED[name].module.rpartition(".")[2], "spec": True}
    assert found[f"{name}.safetensors"] == expected
