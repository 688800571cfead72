"""What a comparison with the exact setting decides. `test_compare.py` and `test_lossy_auto.py` run some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import run_program


@pytest.fixture(scope="module")
def found(comfyui: Path) -> dict[str, Any]:
    return json.loads(run_program(comfyui, "tests.support.files.exact_settings").splitlines()[-1])


def test_the_exact_plan_leaves_out_all_that_changes_the_image(found: dict[str, Any]) -> None:
    assert found["exact"] == {
        "sparse": "ulysses=2",
        "sage": "ulysses=2",
        "int4": "ulysses=2",
        "patches": "ulysses=4",
        "patches, no ulysses": "ring=2",
        "whole": "pipefusion=2 × 4 patches, 4 sync",
        "flash": "ulysses=2 × flash attention",
    }


def test_a_comparison_is_found_again_for_the_same_setting_alone(found: dict[str, Any]) -> None:
    assert found["keys"] == {
        "the same": True,
        "a function of a process": True,
        "a second scale of guidance": False,
        "another sampler": False,
        "another plan": False,
    }


def test_an_exact_run_that_fails_costs_no_latents_and_is_not_tried_again(found: dict[str, Any]) -> None:
    assert found["tries"] == 2
    for said, reason in zip(found["told"], ("memory", "memory", "died", "died"), strict=True):
        assert said.startswith("The exact run under ulysses=2 failed: ") and reason in said
    assert [said.endswith("(Tried on an earlier prompt.)") for said in found["told"]] == [False, True] * 2


def test_steps_that_run_whole_say_nothing_of_what_a_lossy_plan_takes(found: dict[str, Any]) -> None:
    assert found["usual"] == {"0": [1.2, 0.5], "3": [1.1, 0.6], "6": None, "one": [9.0, 0.1]}
