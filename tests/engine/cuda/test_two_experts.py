"""Two models that are sampled in turn, as Wan 2.2's experts, on labelled cards: both stay there, if both fit.

The reference is ComfyUI's own model in one process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.cases.references import relative_error
from tests.support.host.stock_prompts import write_cases
from tests.support.programs import run_program
from tests.support.ranks.pool import RankPool

TOLERANCE = 1e-5
BLOCKS = 8
ONE, TWO, SHARED = {"ulysses": 1}, {"ulysses": 2}, {"ulysses": 2, "weights": "shared"}
HIGH, LOW = "high.safetensors", "low.safetensors"
KEPT = "Beside {}, the devices keep {}."
BOTH, LITTLE = 2.2, 1.75  # times one model's weights
CASES = {
    "both fit": ([TWO, TWO], BOTH, ""),
    "one fits": ([TWO, TWO], LITTLE, ""),
    "shared": ([SHARED, SHARED], LITTLE, ""),
    "grows": ([TWO, TWO], BOTH, "grows"),
    "adapter": ([TWO, TWO], BOTH, "adapter"),
    "parked": ([TWO, TWO], BOTH, "parked"),
    "ranks": ([TWO, ONE], BOTH, ""),
}


@pytest.fixture(scope="module")
def files(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("experts")
    write_cases(comfyui, base, ["wan-2.1-t2v"])
    weights = load_file(base / "models/diffusion_models/wan-2.1-t2v.safetensors")
    first = {name: weight for name, weight in weights.items() if name.startswith("blocks.0.")}
    for block in range(2, BLOCKS):
        weights |= {name.replace(".0.", f".{block}.", 1): weight.clone() for name, weight in first.items()}
    for name, factor in ((HIGH, 1.0), (LOW, 0.9)):
        save_file({key: factor * weight for key, weight in weights.items()}, base / name)
    return [base / HIGH, base / LOW]


@pytest.fixture(scope="module")
def stock(comfyui: Path, files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    """Of the first file, of the second, and of the first with the adapter."""
    out = tmp_path_factory.mktemp("stock") / "found"
    run_program(comfyui, "tests.support.labelled.stock_wan", out, *files)
    return torch.load(out)


@pytest.fixture(scope="module")
def told(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """By case, what each rank tells of each step."""
    root, found = tmp_path_factory.mktemp("ranks"), {}
    jobs = {2: CASES, 1: {"lacks": ([ONE, ONE], BOTH, "lacks")}}
    with RankPool(root) as pool:
        for world, cases in jobs.items():
            asked = [(name, [str(file) for file in files], *case) for name, case in cases.items()]
            (given := root / f"{world}.json").write_text(json.dumps(asked))
            pool.run(world, "cuda.expert_ranks", str(given), str(root / f"told-{world}"))
            by_rank = [torch.load(root / f"told-{world}.{rank}") for rank in range(world)]
            found |= {name: [each.get(name, each) for each in by_rank] for name in cases}
    return found


def steps_of(told: dict[str, list[Any]], case: str, key: str) -> list[Any]:
    """By rank, by step."""
    for found in told[case]:
        assert isinstance(found, list), found
    return [[step[key] for step in found] for found in told[case]]


@pytest.mark.parametrize("case", CASES)
def test_each_expert_predicts_what_stock_does(case: str, told: dict[str, list[Any]], stock: list[torch.Tensor]) -> None:
    first, second, adapted = stock
    right = [adapted if case == "adapter" else first, second] * 2
    assert min(relative_error(other, first) for other in (second, adapted)) > 0.01
    made = steps_of(told, case, "prediction")[0]
    for one, other in zip(made, right, strict=True):
        assert relative_error(one, other) <= TOLERANCE


@pytest.mark.parametrize("case", ["both fit", "shared", "adapter"])
def test_a_second_prompt_loads_nothing(case: str, told: dict[str, list[Any]]) -> None:
    of_ranks = zip(*(steps_of(told, case, key) for key in ("builds", "read", "patched")), strict=True)
    for builds, read, patched in of_ranks:
        assert builds == [1, 1, 0, 0]
        assert all(read[:2]) and read[2:] == [0, 0]
        assert patched == [case == "adapter", 0, 0, 0]
    for in_use in steps_of(told, case, "in use"):
        assert in_use[1] == in_use[2] == in_use[3]
    for said in steps_of(told, case, "said"):
        assert said == ["", KEPT.format(LOW, HIGH), KEPT.format(HIGH, LOW), KEPT.format(LOW, HIGH)]


def test_what_is_on_the_card(told: dict[str, list[Any]], files: list[Path]) -> None:
    size = files[0].stat().st_size
    for case, most in (("both fit", 2.05), ("one fits", 1.05), ("shared", LITTLE)):
        for in_use in steps_of(told, case, "in use"):
            assert max(in_use) <= most * size, case
    for peak in steps_of(told, "one fits", "peak"):
        assert max(peak) <= 1.25 * size, "the other one is released first"
    assert min(steps_of(told, "both fit", "in use")[0][1:]) > 1.95 * size


def test_one_is_given_up_if_both_do_not_fit(told: dict[str, list[Any]]) -> None:
    """It says so, and what would fit."""
    for builds in steps_of(told, "one fits", "builds"):
        assert builds == [1, 1, 1, 1]
    for said in steps_of(told, "one fits", "said"):
        assert not said[0]
        assert said[1].startswith(f"The devices released {HIGH}, because beside it {LOW} lacked ")
        assert said[1].endswith(" With weights=shared, all of them fit.")
    assert steps_of(told, "one fits", "said") == steps_of(told, "one fits", "status")


def test_one_is_given_up_once_a_larger_forward_needs_its_room(told: dict[str, list[Any]]) -> None:
    of_ranks = zip(*(steps_of(told, "grows", key) for key in ("builds", "said", "status")), strict=True)
    for builds, said, status in of_ranks:
        assert builds == [1, 1, 0, 1]
        assert said[2] == KEPT.format(HIGH, LOW)
        assert status[2].startswith(f"The devices released {LOW}, because beside it {HIGH} lacked ")


def test_comfyuis_free_frees_both(told: dict[str, list[Any]]) -> None:
    """The last one is in RAM then. The other one is read again, and replaces it."""
    for builds in steps_of(told, "parked", "builds"):
        assert builds == [1, 1, 1, 1]


def test_a_plan_of_fewer_ranks_releases_what_they_do_not_all_have(told: dict[str, list[Any]]) -> None:
    builds = steps_of(told, "ranks", "builds")
    assert builds == [[1, 1, 1, 1], [1, 0, 1, 0]]


def test_after_a_lack_of_memory_one_model_is_held(told: dict[str, list[Any]], stock: list[torch.Tensor]) -> None:
    """The prompt that lacks it fails, and says to try again."""
    (builds,), (said,), (made,) = (steps_of(told, "lacks", key) for key in ("builds", "said", "prediction"))
    assert builds == [1, 1, 1, 1, 1, 1]
    assert made[1] is None and "Queue the prompt again." in said[1]
    assert said[2:] == [""] * 4
    for one, other in zip(made[2:], [*stock[:2]] * 2, strict=True):
        assert relative_error(one, other) <= TOLERANCE
