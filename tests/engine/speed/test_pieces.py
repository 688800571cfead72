"""A forward in pieces that take turns (`seams/exchange/pieces.py`). That each class's result is the same is shown by
`test_host_models.py`, and that no stream is too early by `cuda/test_streams.py`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallel_backend.errors import PlanError
from parallel_backend.models import checks
from parallel_backend.models.spec import BlockList, Kept, ModelSpec
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.exchange.pieces import UNEQUAL, Pieces
from parallel_backend.seams.forward import Code, Forward
from tests.support.programs import run_program

TWO = ParallelPlan(ulysses=2, pieces=2)


class Told:
    """Pieces of a model with some blocks."""

    def __init__(self, count: int, blocks: int) -> None:
        self.pieces: Any = Pieces(count)
        self.blocks = blocks
        self.running: set[int] = set()
        self.fails: Callable[[int, int], bool] = lambda piece, block: False
        self.skips: Callable[[int, int], bool] = lambda piece, block: False

    def attend(self, sent: Any) -> list[str]:
        return [f"result of {piece}" for piece in sent]

    def model(self, piece: int) -> str:
        self.running.add(piece)
        try:
            for block in range(self.blocks):
                if not self.skips(piece, block):
                    assert self.pieces.meet(piece, self.attend) == f"result of {piece}"
                if self.fails(piece, block):
                    raise ValueError(f"{piece} in {block}")
            return f"output of {piece}"
        finally:
            self.running.remove(piece)


def test_a_piece_sees_the_callers_context_variables() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    variable.set("the caller's")
    seen: list[str] = []
    Pieces(2).run(lambda piece: seen.append(variable.get()))
    assert seen == ["the caller's"] * 2


@pytest.mark.parametrize("piece", [0, 1, 2])
@pytest.mark.parametrize("block", [0, 1])
def test_a_piece_that_fails_ends_the_others_and_says_why(piece: int, block: int) -> None:
    told = Told(3, 2)
    told.fails = lambda *at: at == (piece, block)
    with pytest.raises(ValueError, match=f"{piece} in {block}"):
        told.pieces.run(told.model)
    assert not told.running, "hooks of the blocks are called"
    told.fails = lambda *at: False
    assert told.pieces.run(told.model) == "output of 2", "the next forward runs"


@pytest.mark.parametrize("piece", [0, 2])
def test_pieces_that_attend_unequally_often_are_refused(piece: int) -> None:
    told = Told(3, 2)
    told.skips = lambda *at: at == (piece, 0)
    with pytest.raises(RuntimeError, match=UNEQUAL):
        told.pieces.run(told.model)
    assert not told.running


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"pieces": 2}, "pieces=2 does not work with ulysses=1."),
        ({"ulysses": 2, "ring": 2, "pieces": 2}, "pieces=2 does not work with ring."),
        ({"ulysses": 2, "pipefusion": 2, "pieces": 2}, "pieces=2 does not work with pipefusion or patches."),
        ({"ulysses": 2, "exchange_dtype": "int4", "pieces": 2}, "pieces=2 does not work with exchange_dtype=int4."),
        ({"ulysses": 2, "pieces": 5}, "pieces=5 does not work with ulysses=2."),
        ({"ulysses": 2, "pieces": 0}, "pieces=0 does not work."),
    ],
)
def test_what_needs_a_forward_whole_is_refused_with_pieces(plan: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as caught:
        ParallelPlan(**plan)
    assert caught.value.explanation.cause == said


def test_a_python_without_coroutines_has_no_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "lacks_coroutines", lambda: True)
    with pytest.raises(PlanError, match="greenlet"):
        checks.check_module(TWO, SimpleNamespace())  # type: ignore[arg-type]


def able() -> Any:
    """What `can_run_in_pieces` looks at, as it is where a forward can."""
    return SimpleNamespace(
        mesh=SimpleNamespace(plan=TWO),
        seams=[SimpleNamespace(attends_by_name=True)],
        layout=SimpleNamespace(starts={}),
        spec=ModelSpec("Model", blocks=(BlockList("blocks", {}, None),)),
        slot=SimpleNamespace(code=Code.NONE),
        fetched=SimpleNamespace(flat_blocks={}),
        compiled=SimpleNamespace(asked=None),
    )


@pytest.mark.parametrize(
    ("what", "name", "value"),
    [
        ("", "seams", []),  # of a UNet in bands
        ("", "seams", [SimpleNamespace(attends_by_name=True), SimpleNamespace(attends_by_name=False)]),
        ("layout", "starts", {"a": "b"}),
        ("slot", "code", Code.UNKNOWN),
        ("fetched", "flat_blocks", {0: None}),
        ("", "spec", ModelSpec("Model", blocks=(BlockList("blocks", {}, None, sides={"keys": Kept("drop", "x")}),))),
        ("mesh", "plan", ParallelPlan(ulysses=2)),
        ("mesh", "plan", ParallelPlan(ulysses=2, pieces=2, compile="auto")),  # which each rank decides alone
        ("compiled", "asked", {"backend": "inductor"}),
    ],
)
def test_a_forward_that_must_be_whole_runs_whole(what: str, name: str, value: Any) -> None:
    model = able()
    assert ParallelModel.can_run_in_pieces(model, Forward([0]))
    setattr(getattr(model, what) if what else model, name, value)
    assert not ParallelModel.can_run_in_pieces(model, Forward([0]))


def test_a_forward_in_pieces_waits_less_by_the_order_of_its_own_operations(comfyui: Path) -> None:
    found = run_program(comfyui, "tests.benchmarks.exchange.clock:probe")
    whole, two, three = (found[pieces] for pieces in ("1", "2", "3"))
    assert whole["waited"] > 0.3 * whole["sending"]
    assert two["waited"] < 0.25 * whole["sending"]
    assert three["waited"] < two["waited"]
    assert two["seconds"] < 0.95 * whole["seconds"]
