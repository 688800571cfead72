"""A forward in pieces: coroutines that compute a part of a rank's tokens each, and take turns in attention.

While one piece's queries, keys and values travel, the others compute the rest of their block and their projections of
the next. Each call of attention computes all pieces' tokens together, as soon as all have sent theirs. So the result is
exact.

The pieces are greenlets, coroutines of one thread, because a block's own code cannot be left in the middle otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from .ulysses import PendingResult

UNEQUAL = "The pieces of a forward do not attend equally often."


class PieceStopped(Exception):
    """Ends a piece because another one has failed."""


class Pieces:
    """The pieces of one forward. The last one runs where it is called, and the earlier ones are coroutines.

    started: the attention calls (`SharedCall`) at which the earlier pieces wait. pending: the results that go back to
    them.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.earlier: list[Any] = []
        self.started: list[Any] = []
        self.pending: list[list[PendingResult]] = []

    def run(self, run: Callable[[int], Any]) -> Any:
        """Runs all pieces by their number, and returns what the last one returns. The others end before it. Raises what
        any of them raises, after all have ended."""
        from greenlet import greenlet

        self.earlier = [greenlet(run) for _ in range(self.count - 1)]
        try:
            for index, piece in enumerate(self.earlier):
                piece.gr_context = copy_context()  # else its context variables would be unset
                piece.switch(index)
            output = run(self.count - 1)
            if not all(piece.dead for piece in self.earlier):
                raise RuntimeError(UNEQUAL)
            return output
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the pieces that wait, so that the hooks of their running blocks are called."""
        for piece in self.earlier:
            if piece and not piece.dead:
                with suppress(PieceStopped):  # another piece's failure is what is raised
                    piece.throw(PieceStopped())
        self.earlier.clear()
        self.started.clear()
        self.pending.clear()

    @property
    def is_last(self) -> bool:
        """Whether the last piece runs."""
        from greenlet import getcurrent

        return getcurrent() not in self.earlier

    def meet(
        self, started: Any, compute: Callable[[Sequence[Any]], Sequence[list[PendingResult]]]
    ) -> list[PendingResult]:
        """Waits until all pieces have sent what attention needs. Returns this piece's part of what `compute` returns
        for all. The last piece to come computes. Then the others go on, one after the other, each until it waits again
        or ends."""
        if not self.is_last:
            self.started.append(started)
            self.earlier[0].parent.switch()
            return self.pending.pop(0)
        if len(self.started) != len(self.earlier):
            raise RuntimeError(UNEQUAL)
        *self.pending, own = compute([*self.started, started])
        self.started.clear()
        for piece in self.earlier:
            piece.switch()
        return own
