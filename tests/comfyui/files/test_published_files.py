"""A file of published proportions, as ComfyUI detects it, holds every parameter of its diffusers model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import diffusers
import pytest
import torch
from safetensors import safe_open

from demo.host import REPOSITORY
from parallel_backend.weights.loading import ModelSource, stored_shape
from parallel_backend.weights.single_file import locate
from tests.support.cases.published_cases import PUBLISHED


@pytest.fixture(scope="module")
def found(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict | str]:
    """By file, what the loader finds in it: a ModelSource, or the words of a refusal."""
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
def test_a_published_file_holds_every_parameter_of_the_diffusers_model(name: str, found: dict) -> None:
    assert isinstance(found[f"{name}.safetensors"], dict), found
    source = locate(ModelSource.from_json(found[f"{name}.safetensors"]))
    with torch.device("meta"):
        model = getattr(diffusers, source.model_class).from_config(dict(source.config))
    with safe_open(source.files[0], framework="pt") as file:
        for key, parameter in model.named_parameters():
            assert stored_shape(file, source.names[key]) == tuple(parameter.shape), key
