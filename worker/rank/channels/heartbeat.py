"""A rank's heartbeat, and messages that reach every rank while their main threads are busy.

Each rank tells rank 0 of its life and memory, in a thread of its own, and the answer says which job was given up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from parallel_backend.errors import is_out_of_memory

from ...wire.handshake import BROKEN_LINK
from .heartbeat_link import Hear, Message

INTERVAL = 0.25
# The wait between a job's break-off and the cutting of its groups. gloo can lose track of a transfer that is cut
# midway.
CUT_DELAY_SECONDS = 0.5
STUCK_SECONDS = 30.0  # the longest time from a job's break-off to its end on every rank


class Board:
    """What rank 0 knows of all ranks. Any thread may hear.

    heard: by rank, when its last beat came, and the beat. moved_at: when a beat last had other moves. cancelled,
    broken: the last job that ComfyUI cancelled, and the last one that a rank broke off.
    """

    def __init__(self, world: int) -> None:
        self.heard: list[tuple[float, Message]] = [(time.monotonic(), {"moves": 0, "memory": {}})] * world
        self.moved_at = time.monotonic()
        self.cancelled = self.broken = 0

    def hear(self, beat: Message) -> Message:
        """Notes a rank's beat, and returns what the rank is told."""
        now, rank = time.monotonic(), beat["rank"]
        if beat["moves"] != self.heard[rank][1]["moves"]:
            self.moved_at = now
        self.heard[rank] = now, beat
        self.broken = max(self.broken, beat["broken"])
        return {"cancelled": self.cancelled, "broken": self.broken}


class Heartbeat(threading.Thread):
    """Reports this rank's life and memory four times a second, and learns which job was cancelled or broken off.

    A job is identified by its request's id, which counts up; 0 is none.
    """

    def __init__(
        self,
        rank: int,
        board: Board,
        ask: Hear,
        measure: Callable[[], Mapping[str, int]],
        count_moves: Callable[[], int],
        on_broken: Callable[[int], None],
        on_beat: Callable[[], None] = lambda: None,
    ) -> None:
        """board: rank 0's; another rank's stays empty. ask: sends rank 0 a beat, and returns its answer.
        measure: returns this rank's memory, see `RankState.memory`; asks neither torch nor CUDA.
        count_moves: returns a number that changes while this rank works, see `Timeline`.
        on_broken: called with the id of each job that is broken off.
        on_beat: called at each beat; raises nothing."""
        super().__init__(name="heartbeat", daemon=True)
        self.rank = rank
        self.board = board
        self.ask = ask
        self.measure = measure
        self.count_moves = count_moves
        self.on_broken = on_broken
        self.on_beat = on_beat
        self.cancelled = self.broken = self.announced = 0
        self.broken_at = 0.0
        self.ended = 0  # the last job that ended on this rank
        self.due = threading.Event()
        self.beat()

    def run(self) -> None:
        while True:
            try:
                self.beat()
                self._watch_broken()
                self.on_beat()
            except BROKEN_LINK as error:  # if rank 0 has ended, so will this process
                logging.warning("no sign of life reached rank 0: %r", error)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                logging.warning("no memory for a sign of life")  # the job uses it up; the next beat may find some
            self.due.wait(INTERVAL)
            self.due.clear()

    def beat(self, broken: int = 0) -> None:
        """Sends rank 0 a sign of life. broken: a job that this rank is about to cut. Raises BROKEN_LINK."""
        beat = {"rank": self.rank, "moves": self.count_moves(), "memory": self.measure(), "broken": broken}
        answer = self.ask(beat)
        self.cancelled = answer["cancelled"]
        if answer["broken"] != self.broken:
            self.broken, self.broken_at = answer["broken"], time.monotonic()

    def cancel(self, job: int) -> None:
        """Cancels a job on all ranks within two beats. Returns at once. Called on rank 0, from any thread."""
        self.cancelled = self.board.cancelled = job
        self.due.set()

    def is_broken(self, job: int) -> bool:
        """Whether any rank has broken the job off. Raises BROKEN_LINK."""
        self.beat()
        return self.broken == job

    def status(self) -> dict[str, Any]:
        """Returns, on rank 0, each rank's seconds since its last sign of life, and its memory in bytes: rank 0's as it
        is after the last request, because ComfyUI asks what that has freed, and the others' of their last beats. still:
        the seconds since any rank's timeline has moved."""
        now, heard = time.monotonic(), list(self.board.heard)
        memory = [beat["memory"] for _, beat in heard]
        with contextlib.suppress(MemoryError):  # a job uses the memory up
            memory[0] = self.measure()
        return {"beats": [now - at for at, _ in heard], "memory": memory, "still": now - self.board.moved_at}

    def _watch_broken(self) -> None:
        """Cuts a broken job's communication. If the job still does not end, ends this process, and with it the
        group."""
        since = time.monotonic() - self.broken_at
        if self.broken != self.announced and since > CUT_DELAY_SECONDS:
            self.announced = self.broken
            self.on_broken(self.broken)
        if self.ended < self.broken and since > STUCK_SECONDS:
            logging.error("job %d was broken off and does not end", self.broken)
            os._exit(1)
