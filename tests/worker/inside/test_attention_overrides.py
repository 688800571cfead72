"""An attention override that only chooses a kernel is known by its code, and a rank says why it cannot use a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import run_program

WORDS = {
    "no package": "sage, which needs the package sageattention, which is missing here or too old.",
    "no function": "fast, which ComfyUI does not have.",
    "a CPU": "sage, which runs on NVIDIA's GPUs, and the ranks compute on cpu.",
    "fp32": "sage, which computes in bf16 or fp16, and the model is loaded in fp32.",
    "an old card": "sage3, which needs a device of compute capability 10.0.",
    "long heads": "sage, which takes head dims that are multiples of 8 up to 128, and the model's is 256.",
    "ring": "sage3, which returns no log-sum-exp, which ring=2 needs.",
    "ring, by the engine": "sage, which needs the package sageattention, which is missing here or too old.",
    "a plan's own": "sage, which gives way to the plan's attention=native.",
    "split, ring": "split, which returns no log-sum-exp, which ring=2 needs.",
}


@pytest.fixture(scope="module")
def found(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("kernels") / "custom_nodes"
    return run_program(comfyui, "tests.support.kernel_pack.choices", folder)


def test_an_override_that_only_calls_an_attention_function_is_known_by_it(found: dict[str, Any]) -> None:
    assert len(found["chosen"]) >= 6
    assert found["chosen"] == {name: name.split()[0] for name in found["chosen"]}


def test_an_override_that_does_more_is_none_whatever_its_name(found: dict[str, Any]) -> None:
    assert len(found["others"]) >= 8
    assert found["others"] == dict.fromkeys(found["others"])


@pytest.mark.parametrize("case", WORDS)
def test_a_rank_says_why_it_cannot_use_a_kernel(case: str, found: dict[str, Any]) -> None:
    assert found["answers"][case].removeprefix("A node asks for attention by ") == WORDS[case]


def test_a_ranks_kernel_is_comfyuis_function_and_masked_attention_is_torchs(found: dict[str, Any]) -> None:
    assert found["results"] == pytest.approx({"plain": 0, "scaled": 0, "masked": 0}, abs=1e-6)


def test_only_sage_leaves_calls_that_need_precision_to_torch_as_comfyuis_function_does(found: dict[str, Any]) -> None:
    assert [name for name, takes in found["takes"].items() if not takes] == ["sage"]
