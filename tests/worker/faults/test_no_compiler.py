"""Blocks that are to be compiled where nothing compiles: refused by name, and the ranks go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, call_request, source_of
from tests.support.group.one_rank import OneRank


def test_a_plan_that_compiles_is_refused_where_no_compiler_is(
    own_ranks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(DIT, tmp_path / "model").to_json()
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with OneRank(tmp_path) as rank:

        def load(compiled: str) -> dict:
            plan = ParallelPlan(compile=compiled).to_json()
            return rank.request({"op": "load", "source": source, "plan": plan})[0]

        def forward() -> dict:
            return rank.request(*call_request(DIT))[1]

        error = load("on")["error"]
        assert "there is no C++ compiler (g++)" in error["cause"]
        assert "compile=off" in error["advice"]
        assert load("off").keys() == {"id"}
        assert "prediction.0.0" in forward()
        assert "run through torch.compile" not in rank.said()
