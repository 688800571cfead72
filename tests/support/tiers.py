"""The tiers of the suite: what a test needs, by its fixtures; what the gate leaves of a list of cases to `--slow`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pytest
import torch
from _pytest.mark.structures import ParameterSet

# The fixtures that stand for what takes long to start: whatever starts it has one of them among its own.
NEEDS = {"browser", "comfyui", "older_comfyui", "ranks", "labelled_ranks", "own_ranks", "drawn"}


def slow_but(quick: Collection[str], cases: Mapping[str, tuple[Any, ...]]) -> list[ParameterSet]:
    """The cases as parameters, by id; all are marked slow but the quick ones, one of each kind."""
    assert set(quick) <= set(cases), "a quick case that there is not"
    return [
        pytest.param(*values, id=name, marks=[] if name in quick else [pytest.mark.slow])
        for name, values in cases.items()
    ]


def running(request: pytest.FixtureRequest, *names: str) -> list[tuple[Any, ...]]:
    """Of each test of the file that this session runs and that is given parameters of these names, their values."""
    found = []
    for item in request.session.items:
        given = getattr(item, "callspec", None)
        if item.path == request.path and given and set(names) <= set(given.params):
            found.append(tuple(given.params[name] for name in names))
    return found


def is_fast(item: pytest.Item) -> bool:
    return not item.get_closest_marker("slow") and NEEDS.isdisjoint(getattr(item, "fixturenames", ()))


def why_left_out(item: pytest.Item) -> str:
    """Why the options leave a test out; empty if they ask for it."""
    asks, has_mark = item.config.getoption, item.get_closest_marker
    if has_mark("gpu") and asks("--device") == "cuda" and not torch.cuda.is_available():
        return "need a GPU: see `python3 dev.py gpu`"
    if asks("--fast"):
        return "" if is_fast(item) else "are not fast: run without --fast"
    return "are slow: run with --slow" if has_mark("slow") and not asks("--slow") else ""


def select(config: pytest.Config, items: list[pytest.Item]) -> str:
    """Leaves what this session runs in `items`, the fast tests first, which else stay in their order. Returns how many
    others there are, and why they are left out."""
    reasons = {item: why_left_out(item) for item in items}
    left_out = [item for item in items if reasons[item]]
    config.hook.pytest_deselected(items=left_out)
    items[:] = sorted((item for item in items if not reasons[item]), key=lambda item: not is_fast(item))
    counts = Counter(reasons[item] for item in left_out)
    return "\n".join(f"{count} tests are left out, as they {why}" for why, count in counts.items())
