"""A model in two pieces: coroutines that compute half of a rank's tokens each, and take turns in attention.

While one piece's queries, keys and values travel, the other computes the rest of its block and its own projections.
Each call of attention computes both pieces' tokens together, as soon as both have sent theirs. So the result is exact.

The pieces are coroutines of one thread (greenlets), because a block's own code cannot be left in the middle otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

LIBRARY = "greenlet"  # ComfyUI's database brings it

Sent = TypeVar("Sent")
Leaving = TypeVar("Leaving")


def lacks_coroutines() -> bool:
    """Whether this Python has no library of coroutines that can be left inside a call."""
    return find_spec(LIBRARY) is None


class PieceStopped(Exception):
    """Ends the first piece because the last one has failed."""


class Pieces(Generic[Sent, Leaving]):
    """Two pieces of one forward.

    sent: what the first piece has sent for the attention call at which it waits; None while it runs.
    """

    def __init__(self) -> None:
        self.first: Any = None
        self.sent: Sent | None = None
        self.leaving: Leaving | None = None

    def run(self, first: Callable[[], object], last: Callable[[], Any]) -> Any:
        """Runs both pieces, and returns what the last one returns. The first piece ends before the last one. Raises
        what either raises, after both have ended."""
        from greenlet import greenlet

        self.first = greenlet(first)
        try:
            self.first.switch()
            output = last()
            if not self.first.dead:
                raise RuntimeError("The pieces of a forward do not attend equally often.")
            return output
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the first piece, so that the hooks of its running blocks are called."""
        if not self.first.dead:
            try:
                self.first.throw(PieceStopped())
            except PieceStopped:
                pass
        self.first = self.sent = self.leaving = None

    def meet(self, sent: Sent, compute: Callable[[Sequence[Sent]], Sequence[Leaving]]) -> Leaving:
        """Waits until both pieces have sent what attention needs. Returns this piece's part of what `compute` returns
        for both. The last piece to arrive computes. Then the first piece goes on, until it waits again or ends."""
        if self.is_first:
            self.sent = sent
            self.first.parent.switch()
            leaving, self.leaving = self.leaving, None
            assert leaving is not None
            return leaving
        if self.sent is None:
            raise RuntimeError("The pieces of a forward do not attend equally often.")
        self.leaving, own = compute([self.sent, sent])
        self.sent = None
        self.first.switch()
        return own

    @property
    def is_first(self) -> bool:
        """Whether the first piece runs."""
        from greenlet import getcurrent

        return getcurrent() is self.first
