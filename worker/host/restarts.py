"""Decides how often a worker group that dies is restarted, and after what pause."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 600.0
PAUSES = (0.0, 1.0, 4.0)  # before the first restart, the second, and all others


class Restarts:
    """Counts deaths in a window of time. most: after so many, the group is not restarted."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.clock = clock
        self.deaths: deque[float] = deque()

    def note_death(self) -> None:
        self.deaths.append(self.clock())

    def count(self) -> int:
        """Returns the number of deaths in the window that ends now."""
        while self.deaths and self.deaths[0] <= self.clock() - WINDOW_SECONDS:
            self.deaths.popleft()
        return len(self.deaths)

    def seconds_left(self) -> float:
        """Returns the seconds until a restart is allowed; 0 if it is now."""
        over = self.count() - self.most
        return 0.0 if over <= 0 else self.deaths[over - 1] + WINDOW_SECONDS - self.clock()

    def pause(self) -> float:
        """Returns the seconds to wait before the restart after the last death."""
        return PAUSES[min(max(self.count(), 1), len(PAUSES)) - 1]

    def forgive(self) -> None:
        """Forgets the deaths, because the operator has asked for a restart."""
        self.deaths.clear()
