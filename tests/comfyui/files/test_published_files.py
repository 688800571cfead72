"""A file of published proportions is what its class needs, by a spec, with every parameter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo.host import REPOSITORY
from tests.support.cases.published_cases import PUBLISHED


@pytest.fixture(scope="module")
def found(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict | str]:
    """By file, what the loader finds in it, see describe_files."""
    folder = tmp_path_factory.mktemp("published")
    run_module("tests.support.files.write_headers", comfyui, folder)
    return json.loads(
        run_module("tests.support.files.describe_files", comfyui, *sorted(folder.iterdir())).splitlines()[-1]
    )


def run_module(module: str, *arguments: Path) -> str:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_one_whose_tokens_can_be_shared(name: str, found: dict) -> None:
    expected = {"class": PUBLISHED[name].module.rpartition(".")[2], "spec": True}
    assert found[f"{name}.safetensors"] == expected
