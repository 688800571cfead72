"""What the gate runs of a long list of cases, and what is left to `--slow`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def slow_but(quick: Collection[str], cases: Mapping[str, tuple[Any, ...]]) -> list[ParameterSet]:
    """The cases as parameters, by id; all are marked slow but the quick ones, one of each kind."""
    assert set(quick) <= set(cases), "a quick case that there is not"
    return [
        pytest.param(*values, id=name, marks=[] if name in quick else [pytest.mark.slow])
        for name, values in cases.items()
    ]
