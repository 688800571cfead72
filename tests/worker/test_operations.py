"""The table of operations: what is new in it is known to all that read it, on both sides of the wire."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from demo.host import REPOSITORY
from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import Axis
from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, source_of
from tests.support.group.one_rank import OneRank
from tests.support.host.node_defs import read
from worker.errors import RequestRefused
from worker.host.known_state import KnownState
from worker.host.session import Session
from worker.rank.job import ModelFailed
from worker.rank.model.host_model import HostModel
from worker.rank.operations import run_model_code
from worker.rank.serving import answer
from worker.wire.operations import LOAD, OPERATIONS
from worker.wire.protocol import Header, encode
from worker.wire.tensors import Tensors

TOO_MUCH = 1 << 50
CLOTH = {"cloth": torch.zeros(1, 4, 8, 8)}


def test_a_rank_knows_a_new_operation_by_its_row_alone(own_ranks: None, tmp_path: Path) -> None:
    """A real rank: it checks the request, tells of a lack of memory, counts in its status, and drops the model."""
    load = LOAD.header(source=source_of(DIT, tmp_path / "model").to_json(), plan=ParallelPlan().to_json())
    with OneRank(tmp_path, "tests.support.ranks.polishing_rank") as rank:
        assert "The bytes of 'polish' cannot be None" in rank.request({"op": "polish"}, CLOTH)[0]["error"]["cause"]
        assert "tensors cloth, but they are missing" in rank.request({"op": "polish", "bytes": 1})[0]["error"]["cause"]
        reply, _ = rank.request({"op": "polish", "bytes": TOO_MUCH}, CLOTH)
        assert reply["kind"] == "memory"
        assert "Rank 0 ran out of memory while it was polishing the weights" in reply["error"]["cause"]
        rank.request(load)
        assert "error" not in rank.request({"op": "polish", "bytes": 1}, CLOTH)[0]
        status = rank.ask({"op": "status"})
        assert status["counts"] == {**dict.fromkeys(OPERATIONS, 0), "load": 1, "polish": 1}
        assert "model" in status
        assert "error" in rank.request({"op": "polish", "bytes": -1}, CLOTH)[0]
        assert "model" not in rank.ask({"op": "status"})


@pytest.mark.parametrize("outcome", [{"cancelled": True}, {"error": {"cause": "no"}, "kind": "refused"}, {}], ids=str)
@pytest.mark.parametrize("has_model", [True, False])
def test_a_model_that_the_ranks_dropped_is_loaded_again(outcome: dict[str, Any], has_model: bool) -> None:
    """Whatever request ended early: one that moves weights may drop the model, too. The reply says so."""
    session: Any = SimpleNamespace(operation="call", known=KnownState(model=({}, {})))
    Session._end_request(session, {**outcome, "has_model": has_model, "patched": "", "sampling": ""})
    assert (session.known.model is not None) == has_model and session.operation is None


def test_a_request_in_a_callback_of_another_is_refused_and_its_conditions_are_not_taken_for_sent() -> None:
    session: Any = SimpleNamespace(await_cancelled=lambda _check: None, operation="call", known=KnownState())
    text = {"text": torch.ones(2)}
    session.known.conditions.diff(text)
    with pytest.raises(RequestRefused, match="at work"):
        Session.request(session, {"op": "call"}, {}, lambda: None)
    assert session.known.conditions.diff(text)[1]


def test_the_panel_has_words_for_every_operation_in_every_language() -> None:
    """Any other is shown by its name."""
    code = "\n".join(path.read_text() for path in (REPOSITORY / "web" / "panel").glob("*.mjs"))
    (listed,) = re.findall(r"KNOWN_OPERATIONS = \[(.*?)\]", code, re.DOTALL)
    assert {*re.findall(r"'(\w+)'", listed)} == {*OPERATIONS}
    for language in ("en", "zh"):
        assert {*read(language, "main.json")["paralleldit"]["panel"]["operation"]} == {*OPERATIONS}


@pytest.mark.parametrize(("alike", "kind"), [(True, RequestError), (False, ModelFailed)])
def test_what_some_ranks_alone_refuse_is_broken_off_with_the_same_words(alike: bool, kind: type[Exception]) -> None:
    """Others may wait for them in a collective."""
    refusal = RequestError("The blocks were given a mask.", "Use ulysses=1.")
    with pytest.raises(kind) as raised:
        run_model_code(Mock(side_effect=refusal), alike)
    assert raised.value.explanation == refusal.explanation


@pytest.mark.parametrize(
    ("sizes", "groups", "link", "alike"),
    [([2], 2, None, True), ([3], 2, None, True), ([1], 2, None, False), ([2, 2], 2, None, False), ([2], 1, "", False)],
)
def test_ranks_refuse_alike_where_each_runs_rows_of_the_only_call(
    sizes: list[int], groups: int, link: str | None, alike: bool
) -> None:
    module = SimpleNamespace(mesh={"batch": Axis(None, groups, 0)}, link=link)
    assert HostModel(None, None, module, None, None, None, {}, {}).refuses_alike(sizes) == alike


def test_results_that_no_frame_can_carry_are_refused_in_words() -> None:
    """The reply in their place has an error in the form that ComfyUI's process reads."""
    sent: list[Header] = []

    def send(reply: Header, results: Tensors | None = None) -> None:
        encode(reply, results)
        sent.append(reply)

    kept = {"has_model": True, "patched": "", "sampling": "1f"}
    state: Any = SimpleNamespace(reply=lambda: kept)
    answer(Mock(send=send), {"id": 3}, {**kept, "state": {}}, {"result": torch.zeros(1, dtype=torch.complex64)}, state)
    assert [(each["id"], each["kind"]) for each in sent] == [(3, "refused")] and sent[0].items() > kept.items()
    assert "state" not in sent[0], "what is too long would be too long again"
    with pytest.raises(RequestRefused, match="dtype torch.complex64, which cannot be sent"):
        raise RequestRefused(**sent[0]["error"])
