"""A file of published proportions is what its class needs, by a spec, with every parameter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cases.files.published_cases import PUBLISHED
from tests.support.programs import run_program


@pytest.fixture(scope="module")
def found(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict | str]:
    """By file, what the loader finds in it, see describe_files."""
    folder = tmp_path_factory.mktemp("published")
    run_program(comfyui, "tests.support.files.write_headers", folder)
    said = run_program(comfyui, "tests.support.files.describe_files", *sorted(folder.iterdir()))
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_one_whose_tokens_can_be_shared(name: str, found: dict) -> None:
    expected = {"class": PUBLISHED[name].module.rpartition(".")[2], "spec": True}
    assert found[f"{name}.safetensors"] == expected
