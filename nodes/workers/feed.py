"""Sends the state of a worker group to the panel of every open page, as it changes."""

from __future__ import annotations

import threading
import time
from typing import Any

from server import PromptServer

from ...worker.host.client import WorkerGroup

EVENT = "paralleldit.group"
LEAST_SECONDS = 0.25  # between two events
BUSY_SECONDS, STARTING_SECONDS, IDLE_SECONDS = 0.5, 1.0, 2.0  # between two polls of the ranks


class Feed(threading.Thread):
    """Sends an event when the group changes, and also at intervals, because a change in the ranks causes no event
    here."""

    def __init__(self, number: int, group: WorkerGroup, server: PromptServer) -> None:
        super().__init__(name=f"paralleldit-feed-{number}", daemon=True)
        self.number = number
        self.group = group
        self.server = server
        self.sent_runs: dict[int, dict[str, Any]] = {}

    def run(self) -> None:
        while True:
            self.group.changed.wait(self.poll_seconds())
            self.group.changed.clear()
            self.server.send_sync(EVENT, self.make_event())
            time.sleep(LEAST_SECONDS)

    def poll_seconds(self) -> float | None:
        session = self.group.session
        if session is None:
            return STARTING_SECONDS if self.group.phase in ("starting", "restarting") else None
        return BUSY_SECONDS if session.operation else IDLE_SECONDS

    def make_event(self) -> dict[str, Any]:
        """Returns the full status, and the runs that changed since the last event."""
        status = self.group.status()
        runs = {run["id"]: run for run in self.group.runs.to_json()}
        changed, self.sent_runs = [run for number, run in runs.items() if run != self.sent_runs.get(number)], runs
        return {"group": self.number, "status": status, "runs": changed}
