"""What a rank refuses is named; an error that nobody foresaw brings what is needed to report it. The ranks go on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, call_request, direct_on, go_on, source_of
from tests.support.group.one_rank import OneRank
from worker.errors import Explanation, RequestRefused
from worker.host.client import WorkerGroup
from worker.rank.agreement import REFUSED, AgreementGroups, JobEnded
from worker.rank.job import Job


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


def test_an_unforeseen_error_is_refused_unless_ranks_wait_for_each_other_meanwhile(
    one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUP_RANK", "0")
    fail, heartbeat = Mock(side_effect=KeyError("a tensor")), Mock(is_broken=Mock(return_value=False))
    job = Job({"op": "park", "id": 1}, {}, Mock(), AgreementGroups(Mock()), Mock(), heartbeat)
    with pytest.raises(JobEnded) as ended:
        job.all_or_none(fail)
    assert ended.value.outcome.kind == REFUSED and "KeyError: 'a tensor'" in ended.value.outcome.said.cause
    with pytest.raises(KeyError):  # the group ends
        job.all_or_none(fail, has_collectives=True)


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
