"""With a diffusers folder's weights by ComfyUI's names, ComfyUI's class computes what diffusers' class does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases.files.converted_cases import CONVERTED
from tests.support.cases.files.published_folders import PUBLISHED_FOLDERS
from tests.support.programs import run_program
from worker.comfyui.diffusers_names import TABLES

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def found(comfyui: Path) -> dict[str, dict[str, Any]]:
    """What `converted_names` prints."""
    return json.loads(run_program(comfyui, "tests.support.host.converted_names").splitlines()[-1])


def test_each_class_with_a_table_is_compared() -> None:
    assert {case.family.model_class for case in CONVERTED.values()} == TABLES.keys()
    assert {model_class for model_class, _config, _detected in PUBLISHED_FOLDERS.values()} == TABLES.keys()


@pytest.mark.parametrize("name", CONVERTED)
def test_comfyuis_class_predicts_what_diffusers_class_does(name: str, found: dict[str, dict[str, Any]]) -> None:
    error = found["errors"][name]
    assert isinstance(error, float), error
    assert error <= TOLERANCE


@pytest.mark.parametrize("name", PUBLISHED_FOLDERS)
def test_comfyui_knows_a_published_model_by_its_converted_header(name: str, found: dict[str, dict[str, Any]]) -> None:
    _model_class, _config, expected = PUBLISHED_FOLDERS[name]
    detected = found["detected"][name]
    assert detected["class"] == expected
    absent = CONVERTED["pixart-alpha"].absent if expected.startswith("PixArt") else ()
    assert {key: shapes for key, shapes in detected["different"].items() if key not in absent} == {}
