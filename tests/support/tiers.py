"""The tiers of the suite: what a test needs, by its fixtures; what the gate leaves of a list of cases to `--slow`."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from _pytest.mark.structures import ParameterSet

# What takes long to start, by the fixture that stands for it: whatever starts it has that fixture among its own.
NEEDS = {
    "browser": "a browser",
    "comfyui": "ComfyUI",
    "older_comfyui": "ComfyUI",
    "ranks": "ranks",
    "labelled_ranks": "ranks",
    "own_ranks": "ranks",
    "drawn": "the demo model's pictures",
}
# What a command that starts one of them has among its arguments, and which of the needs it is.
STARTS = {"torch.distributed.run": "ranks", "tests.support.ranks.": "ranks", "worker.": "ranks", "main.py": "ComfyUI"}


def slow_but(quick: Collection[str], cases: Mapping[str, tuple[Any, ...]]) -> list[ParameterSet]:
    """The cases as parameters, by id; all are marked slow but the quick ones, one of each kind."""
    assert set(quick) <= set(cases), "a quick case that there is not"
    return [
        pytest.param(*values, id=name, marks=[] if name in quick else [pytest.mark.slow])
        for name, values in cases.items()
    ]


def needs(fixtures: Iterable[str]) -> list[str]:
    """What a test with these fixtures, theirs included, needs that takes long to start; the costliest first."""
    held = set(fixtures)
    return [need for fixture, need in NEEDS.items() if fixture in held]


def lacks_gpu(item: pytest.Item) -> bool:
    """Whether the test computes on a GPU, and there is none."""
    is_wanted = item.get_closest_marker("gpu") is not None and item.config.getoption("--device") == "cuda"
    return is_wanted and not torch.cuda.is_available()


def running(request: pytest.FixtureRequest, *names: str) -> list[tuple[Any, ...]]:
    """Of each test of the file that this session runs and that is given parameters of these names, their values."""
    found = []
    for item in request.session.items:
        given = getattr(item, "callspec", None)
        if item.path == request.path and given and set(names) <= set(given.params):
            found.append(tuple(given.params[name] for name in names))
    return found


def why_not_fast(item: pytest.Item) -> str:
    """Why the fast tier leaves a test out; empty if it runs it."""
    if item.get_closest_marker("slow"):
        return "are slow"
    return next((f"need {need}" for need in needs(getattr(item, "fixturenames", ()))), "")


def select(config: pytest.Config, items: list[pytest.Item]) -> str:
    """Leaves what is asked for in `items`, the fast tier first; returns what is to be said of the rest, if it is."""
    without_gpu = {item: None for item in items if lacks_gpu(item)}
    items[:] = [item for item in items if item not in without_gpu]
    config.hook.pytest_deselected(items=list(without_gpu))
    said = [f"{len(without_gpu)} tests deselected, as they need a GPU: see `python3 dev.py gpu`"] if without_gpu else []
    if config.getoption("--fast"):
        reasons = {item: why_not_fast(item) for item in items}
        left_out = [item for item in items if reasons[item]]
        items[:] = [item for item in items if not reasons[item]]
        config.hook.pytest_deselected(items=left_out)
        counts = Counter(reasons[item] for item in left_out)
        listed = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        if left_out:
            said.append(f"{len(left_out)} tests deselected ({listed}): run without --fast")
        return "\n".join(said)
    takes_slow = config.getoption("--slow")
    slow = {item: None for item in items if item.get_closest_marker("slow") and not takes_slow}
    # Stable: within each half as they were.
    items[:] = sorted((item for item in items if item not in slow), key=lambda item: bool(why_not_fast(item)))
    config.hook.pytest_deselected(items=list(slow))
    said += [f"{len(slow)} tests deselected, as they are slow: run with --slow"] if slow else []
    return "\n".join(said)


@contextmanager
def guarded(fixtures: Collection[str]) -> Iterator[list[str]]:
    """Meanwhile, a test with these fixtures can't start what they do not show: it would be in the wrong tier.

    Yields the commands refused, for whoever takes the refusal for something else.
    """
    known, refused = needs(fixtures), []
    start = subprocess.Popen.__init__

    def checked(self: subprocess.Popen, args: Any, *rest: Any, **options: Any) -> None:
        words = [args] if isinstance(args, str | bytes | os.PathLike) else args
        for word in map(os.fsdecode, words):
            for sign, need in STARTS.items():
                if (word.startswith(sign) or word.endswith(f"/{sign}")) and not known:
                    refused.append(f"This starts {need} ({word}), which none of the test's fixtures shows.")
                    raise PermissionError(refused[-1])
        start(self, args, *rest, **options)

    subprocess.Popen.__init__ = checked
    try:
        yield refused
    finally:
        subprocess.Popen.__init__ = start
