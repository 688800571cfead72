"""Sends the state of a worker group to the panel of every open page, as it changes."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from server import PromptServer

from ...worker.host.client import WorkerGroup
from ...worker.launch.logs import log_path

EVENT = "paralleldit.group"
LEAST_SECONDS = 0.25  # between two events
BUSY_SECONDS, STARTING_SECONDS, IDLE_SECONDS = 0.5, 1.0, 2.0  # between two polls of the ranks
LOG_BYTES = 64 << 10  # of one rank's log, in one event


class Feed(threading.Thread):
    """Sends an event when the group changes, and also at intervals, because a change in the ranks causes no event
    here."""

    def __init__(self, number: int, group: WorkerGroup, server: PromptServer) -> None:
        super().__init__(name=f"paralleldit-feed-{number}", daemon=True)
        self.number = number
        self.group = group
        self.server = server
        self.logs: dict[int, LogReader] = {}
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
        """Returns the full status, the runs that changed since the last event, and the new lines of the logs."""
        status = self.group.status()
        runs = {run["id"]: run for run in self.group.runs.to_json()}
        changed, self.sent_runs = [run for number, run in runs.items() if run != self.sent_runs.get(number)], runs
        for rank in range(self.group.ranks):
            self.logs.setdefault(rank, LogReader(log_path(self.group.folder, rank)))
        log = [{"rank": rank, "text": text} for rank, reader in self.logs.items() if (text := reader.new_lines())]
        return {"group": self.number, "status": status, "runs": changed, "log": log}


class LogReader:
    """Reads the lines of a log as they are written, from the first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0

    def new_lines(self) -> str:
        """Returns whole new lines; if there are many, only the last. Reads a rotated log from its start."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                self.at = self.at if self.at <= size else 0
                start = file.seek(max(self.at, size - LOG_BYTES))
                text = file.read(size - start)
        except OSError as error:  # for example, it does not exist yet
            logging.debug("[ParallelDiT] %s", error)
            return ""
        end = text.rfind(b"\n") + 1
        begin = text.find(b"\n") + 1 if start > self.at else 0
        self.at = start + end
        return text[begin:end].decode(errors="replace").rstrip("\n")
