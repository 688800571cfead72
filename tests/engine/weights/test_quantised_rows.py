"""A quantised weight is split between rows as it is, and the parts give the whole weight's bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.cases.files.formats import FORMATS
from tests.support.programs import run_program

TILED = {"w4a4", "mxfp8", "nvfp4"}  # split at multiples of 128 rows; others at multiples of 16
QUANTISED = {name for name, form in FORMATS.items() if form}
Told = Mapping[str, Mapping[str, Mapping[str, bool] | None]]


@pytest.fixture(scope="module")
def told(comfyui: Path) -> Told:
    return run_program(comfyui, "tests.support.files.split_rows")


@pytest.mark.parametrize("form", sorted({*QUANTISED, "gguf"}))
def test_both_parts_give_the_whole_weights_bits(form: str, told: Told) -> None:
    for rows in ("896 384", "912 384"):  # of the second, block scales have padding behind the last row
        found = told[rows][form]
        assert found and all(found.values()), found


def test_a_weight_is_not_split_where_its_scales_or_kernels_cannot_be(told: Told) -> None:
    assert {form for form, found in told["896 400"].items() if not found} == TILED
    for rows in ("896 392", "1000 384"):  # no multiples of 16, which fp8's kernels need
        assert {form for form, found in told[rows].items() if found} == {"gguf"}
