"""Decides how often a worker group that dies or does not start is started again, and after what pause."""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOW_SECONDS = 600.0
PAUSES = (0.0, 1.0, 4.0)  # before the first restart, the second, and all others
STARTS = 3  # failed starts in a row; after so many, no further one is tried in the window


class Restarts:
    """Counts deaths in a window of time. Any thread may ask. most: after so many, the group is not restarted."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.clock = clock
        self.deaths: list[float] = []
        self.failed_starts: list[float] = []  # in a row

    def note_death(self) -> None:
        self.deaths.append(self.clock())

    def count(self) -> int:
        """Returns the number of deaths in the window that ends now."""
        since = self.clock() - WINDOW_SECONDS
        return sum(at > since for at in self.deaths)

    def note_failed_start(self) -> None:
        self.failed_starts.append(self.clock())

    def note_start(self) -> None:
        self.failed_starts = []

    def seconds_left(self) -> float:
        """Returns the seconds until a start is allowed; 0 if it is now."""
        deaths, failed, left = self.deaths, self.failed_starts, 0.0
        if len(deaths) > self.most:
            left = deaths[-self.most - 1] + WINDOW_SECONDS - self.clock()
        if len(failed) >= STARTS:
            left = max(left, failed[-1] + WINDOW_SECONDS - self.clock())
            if left <= 0:
                self.note_start()
        return max(0.0, left)

    @property
    def why(self) -> str:
        """Says why no start is allowed, as the begin of a sentence."""
        if len(self.failed_starts) >= STARTS:
            return f"The worker group failed to start {len(self.failed_starts)} times"
        return f"The worker group died {self.count()} times in ten minutes"

    def pause(self, after_death: bool) -> float:
        """Returns the seconds to wait before the next start. It grows with failed starts, and with deaths if the last
        session has died."""
        tries = max(self.count() - 1 if after_death else 0, len(self.failed_starts), 0)
        return PAUSES[min(tries, len(PAUSES) - 1)]

    def forgive(self) -> None:
        """Forgets deaths and failed starts, because the operator has asked for a restart."""
        self.deaths, self.failed_starts = [], []
