"""What ranks compute while tokens travel, noted for programs that are tests of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from parallel_backend.seams.forward import Forward


@contextmanager
def noting_deferred() -> Iterator[list[int]]:
    """While entered, notes by call of attention over the ranks how many layers are computed while keys travel."""
    found: list[int] = []
    run_deferred = Forward.run_deferred

    def noted(forward: Forward) -> None:
        found.append(len(forward.deferred))
        run_deferred(forward)

    with patch.object(Forward, "run_deferred", noted):
        yield found
