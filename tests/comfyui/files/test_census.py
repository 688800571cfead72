"""Every node of ComfyUI that takes a MODEL, and what node packs do to one beside, with *Parallelize Model* behind the
stock loader: it gives what it gives without. ComfyUI's own model runs what the ranks cannot."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from parallel_backend.plan import ParallelPlan
from tests.support.census.habits import HABITS
from tests.support.census.loaders import DETECTOR_ROWS, NODE_ROWS
from tests.support.census.models import CENSUS_MODELS
from tests.support.census.pack_rows import PACK
from tests.support.census.rows import NEWER_ROWS, ON_ONE_RANK, ROWS
from tests.support.host.graphs import TINY_MODELS
from tests.support.host.stock_prompts import write_cases
from tests.support.programs import run_apart
from tests.support.tiers import running

TOLERANCE = 1e-5
EFFECT = 1e-4  # what a node that does something does at least
RUN = {
    **ROWS,
    **HABITS,
    **DETECTOR_ROWS,
    **NODE_ROWS,
    **{name: row for name, (_, row) in NEWER_ROWS.items()},
}


@pytest.fixture(scope="module")
def census(
    request: pytest.FixtureRequest, comfyui: Path, own_ranks: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What came of each row that this session runs, and the names of the host's nodes."""
    base = tmp_path_factory.mktemp("census")
    write_cases(comfyui, base, [*CENSUS_MODELS, "sd15"])
    shutil.copytree(PACK, base / "custom_nodes" / PACK.name, ignore=shutil.ignore_patterns("__pycache__"))
    wanted = {name for (name,) in running(request, "name")}
    return run_apart(comfyui, "tests.support.census.program", base, *wanted, **TINY_MODELS)


def row_of(census: dict[str, Any], name: str) -> dict[str, Any]:
    if name in NEWER_ROWS and name not in census["nodes"]:
        pytest.skip(f"ComfyUI has this node since {NEWER_ROWS[name][0]}")
    return census["rows"][name]


def test_every_node_that_takes_a_model_has_a_row_or_gives_what_stock_gives(census: dict[str, Any]) -> None:
    """A newer ComfyUI has nodes without a row. They run by their own defaults, if those suffice."""
    known = {row.node or name for name, row in {**ROWS, **DETECTOR_ROWS}.items()}
    assert {*census["nodes"]} - {*census["unknown"]} - {*NEWER_ROWS} == known
    for name in census["unknown"]:
        found = census["rows"][name]
        print(f"{name} has no row: {found}")
        assert "stock raised" in found or found.get("error", 1.0) <= TOLERANCE, (name, found)


@pytest.mark.parametrize("name", [name for name, row in RUN.items() if row.words is None])
def test_it_gives_what_it_gives_on_the_stock_loaders_model(name: str, census: dict[str, Any]) -> None:
    found = row_of(census, name)
    assert "error" in found, found
    assert found["error"] <= (found["effect"] if RUN[name].rounded else TOLERANCE)
    assert (found["effect"] < EFFECT) == RUN[name].ignored, "the row shows nothing"
    assert found["as stock"] == RUN[name].as_stock
    assert RUN[name].shared in ("", found["plan"])
    assert found["said"] == ([RUN[name].said] if RUN[name].said else [])
    asked = str(ParallelPlan(**RUN[name].plan))
    runs = RUN[name].less or RUN[name].shared
    less = RUN[name].plan and runs and not runs.startswith(asked)
    said = f"This sampling runs under {runs}, not under {asked}"
    assert [text.partition(", because of ")[0] for text in found["replaced"]] == ([said] if less else [])


@pytest.mark.parametrize("name", [name for name in RUN if name.startswith(ON_ONE_RANK)])
def test_one_rank_gives_the_stock_loaders_bits(name: str, census: dict[str, Any]) -> None:
    assert census["rows"][name]["error"] == 0.0


@pytest.mark.parametrize("name", [name for name, row in RUN.items() if row.words is not None])
def test_what_fails_on_the_stock_loaders_model_fails_alike(name: str, census: dict[str, Any]) -> None:
    row, found = RUN[name], census["rows"][name]
    assert row.words and row.words in found.get("raised", ""), found
    assert row.ours or row.words in found.get("stock raised", ""), found
