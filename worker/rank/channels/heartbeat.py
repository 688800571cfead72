"""A rank's heartbeat, and messages that reach every rank while their main threads are busy.

Both go through the store of torchrun's agent, in a thread of their own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from parallel_backend.errors import is_out_of_memory

INTERVAL = 0.25
# The wait between a job's break-off and the cutting of its groups. gloo can lose track of a transfer that is cut
# midway.
CUT_DELAY_SECONDS = 0.5
STUCK_SECONDS = 30.0  # the longest time from a job's break-off to its end on every rank
PATIENCE = timedelta(seconds=10)
BEAT, CANCELLED, BROKEN = "paralleldit/beat/{}", "paralleldit/cancelled", "paralleldit/broken"

Answer = TypeVar("Answer")


def agent_store() -> dist.TCPStore:
    """Returns a new connection to the store of torchrun's agent."""
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=PATIENCE)


class Heartbeat(threading.Thread):
    """Reports this rank's life and memory four times a second, and learns which job was cancelled or broken off.

    A job is identified by its request's id, which counts up; 0 is none. Every rank creates its heartbeat before any
    rank starts one. It ends when the store is gone, together with torchrun's agent.
    """

    def __init__(
        self,
        connect: Callable[[], dist.Store],
        rank: int,
        world: int,
        measure: Callable[[], Mapping[str, int]],
        count_moves: Callable[[], int],
        on_broken: Callable[[int], None],
        on_beat: Callable[[], None] = lambda: None,
    ) -> None:
        """measure: returns this rank's memory, see `RankState.memory`; asks neither torch nor CUDA.
        count_moves: returns a number that changes while this rank works, see `Timeline`.
        on_broken: called with the id of each job that is broken off.
        on_beat: called at each beat; raises nothing."""
        super().__init__(name="heartbeat", daemon=True)
        self.connect = connect
        self.rank = rank
        self.measure = measure
        self.count_moves = count_moves
        self.on_broken = on_broken
        self.on_beat = on_beat
        self.cancelled = self.broken = self.announced = 0
        self.broken_at = 0.0
        self.ended = 0  # the last job that ended on this rank
        self.count = 0
        self.due = threading.Event()
        # Each rank's last beat, when it came, and when a beat last had other moves. Only rank 0 collects them.
        self.heard = [(time.monotonic(), {"count": 0, "moves": 0, "memory": {}}) for _ in range(world)]
        self.moved_at = time.monotonic()
        self.store = connect()
        for key in (CANCELLED, BROKEN):
            self.store.compare_set(key, "", "0")
        self._beat()

    def run(self) -> None:
        while True:
            try:
                self._ask(lambda _store: self._beat())
                self._listen()
                self._watch_broken()
                self.on_beat()
            except dist.DistError:
                return
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                logging.warning("no memory for a sign of life")  # the job uses it up; the next beat may find some
            self.due.wait(INTERVAL)
            self.due.clear()

    def cancel(self, job: int) -> None:
        """Cancels a job on all ranks within two beats. Returns at once. Called on rank 0, from any thread."""
        self.cancelled = job
        self.due.set()

    def break_off(self, job: int) -> None:
        """Tells every rank that a job is broken off. Called before its communication is cut."""
        self._ask(lambda store: store.set(BROKEN, str(job)))

    def is_broken(self, job: int) -> bool:
        """Whether any rank has broken the job off."""
        return int(self._ask(lambda store: store.get(BROKEN))) == job

    def status(self) -> dict[str, Any]:
        """Returns, on rank 0, each rank's seconds since its last sign of life, and its memory in bytes: rank 0's as it
        is after the last request, because ComfyUI asks what that has freed, and the others' of their last beats. still:
        the seconds since any rank's timeline has moved."""
        now, heard = time.monotonic(), list(self.heard)
        memory = [beat["memory"] for _, beat in heard]
        with contextlib.suppress(MemoryError):  # a job uses the memory up
            memory[0] = self.measure()
        return {"beats": [now - at for at, _ in heard], "memory": memory, "still": now - self.moved_at}

    def _beat(self) -> None:
        self.count += 1
        beat = {"count": self.count, "moves": self.count_moves(), "memory": self.measure()}
        self.store.set(BEAT.format(self.rank), json.dumps(beat))

    def _listen(self) -> None:
        if self.rank == 0:
            self._ask(lambda store: store.set(CANCELLED, str(self.cancelled)))
            keys = [BROKEN, *(BEAT.format(rank) for rank in range(len(self.heard)))]
            broken, *beats = self._ask(lambda store: store.multi_get(keys))
            for rank, beat in enumerate(map(json.loads, beats)):
                _, last = self.heard[rank]
                if beat["count"] != last["count"]:
                    self.heard[rank] = (time.monotonic(), beat)
                if beat["moves"] != last["moves"]:
                    self.moved_at = time.monotonic()
        else:
            broken, cancelled = self._ask(lambda store: store.multi_get([BROKEN, CANCELLED]))
            self.cancelled = int(cancelled)
        if int(broken) != self.broken:
            self.broken, self.broken_at = int(broken), time.monotonic()

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

    def _ask(self, question: Callable[[dist.Store], Answer]) -> Answer:
        """Calls the store. Renews a broken connection once. Raises DistError if the store is gone."""
        try:
            return question(self.store)
        except dist.DistError:
            self.store = self.connect()
            return question(self.store)
