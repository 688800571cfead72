"""An error that nobody foresaw brings what is needed to report it, and costs the group nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.group.direct_group import DIT, direct_on, go_on
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
