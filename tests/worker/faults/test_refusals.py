"""What a rank refuses is named; an error that nobody foresaw brings what is needed to report it. The ranks go on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, call_request, direct_on, go_on, source_of
from tests.support.group.one_rank import OneRank
from worker.errors import Explanation, RequestRefused
from worker.host.client import WorkerGroup


def test_an_unforeseen_error_on_a_rank_brings_its_traceback_and_the_ranks_live_on(
    group_of_two: WorkerGroup, tmp_path: Path
) -> None:
    direct = direct_on(group_of_two, tmp_path, DIT, cfg=2)
    before = direct.pids()
    source = replace(direct.source, dtype="no dtype")
    with pytest.raises(RequestRefused, match="^AttributeError") as caught:
        direct.group.load(source.to_json(), direct.plan.to_json(), 2, go_on)
    said = caught.value.explanation
    assert "report it" in said.advice
    assert re.search(r"^Rank 0:\nTraceback .*in map_model.*AttributeError", said.details, re.DOTALL)
    with pytest.raises(RequestRefused) as refused:
        direct.forward(8, 8)
    no_model = Explanation("No model is loaded in the worker group.", "Queue the prompt again.")
    assert refused.value.explanation == no_model, "the fields are those that the ranks agreed on"
    assert direct.pids() == before


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
        assert "error" not in load("off")
        assert "prediction.0.0" in forward()
        assert "run through torch.compile" not in rank.said()
