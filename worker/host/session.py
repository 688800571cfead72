"""One session of the worker group: from the start of its processes to their end, with the reason for the end."""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from ..errors import Explanation, RequestRefused, WorkerGroupError
from ..launch.logs import collect_stacks
from ..launch.process import WorkerProcess, explain_silence, is_alive
from ..launch.torchrun import rank_environment, ranks_a_machine, torchrun_command
from ..settings import Settings
from ..wire.handshake import BROKEN_LINK
from ..wire.job_channel import FRAMES, FrameMemory, HostChannel, ask_for_channel
from ..wire.operations import OPERATIONS, operation_of
from ..wire.private_folder import CONTROL, EXPECTED, PROTOCOL, STORE, TOKEN, is_only_ours
from ..wire.protocol import FAILED, IN_BLOCKS, MEMORY, NEVER, ONCE, VERSION, Header, ProtocolError, encode
from ..wire.tensors import Tensors
from .control_client import ControlClient
from .known_state import KnownState, SentConditions

POLL_SECONDS = 0.05
REPORT_SECONDS = 1.5  # torchrun's time to end the remaining ranks, and to report which one failed
SLOW_REPORT_SECONDS = 8.0  # additional time, once no rank is left
MACHINE_SECONDS = 3.0
LOADING_TIMES = 6  # factor for the allowed silence while weights move, and of a rank whose process may go on
STUCK = "it is stopped, or stuck"
# The longest time in which no rank begins or ends an exchange, or reads on in a file, by when the ranks exchange. A
# block takes seconds. A whole forward may take long, and so may a load.
STILL_SECONDS = {IN_BLOCKS: 600.0, ONCE: 3600.0, NEVER: math.inf}
WAS_STOPPED = Explanation("It was stopped.")

Check = Callable[[], None]
OnStep = Callable[[Header, torch.Tensor | None], None]  # the event, and its estimate of the clean latents, if any


class Session:
    """A group's processes, its two channels, and what its ranks hold."""

    def __init__(
        self, ranks: int, device: str, settings: Settings, folder: Path, check: Check, source: Header | None = None
    ) -> None:
        """Starts the processes, and returns when rank 0 has connected.

        folder: for the logs and sockets; nobody else may enter it. source: of the first model that will be loaded.
        Raises WorkerGroupError, and what `check` raises.
        """
        self.ranks = ranks
        self.settings = settings
        self.known = KnownState()
        self.known.note_import(source or {})
        self.operation: str | None = None
        self.last_id = 0
        self.given_up = False  # the last request was cancelled, and its reply has not come yet
        self.began = self.replied = 0.0  # when the last request began, and when its reply came
        self.end_reason: Explanation | None = None
        self.pids: list[int] = []
        self.last_status: dict[str, Any] = {}  # the ranks' last answer
        self.ending = threading.Lock()
        self.silent: set[int] = set()  # ranks that have not answered for too long, but whose processes go on
        started = time.monotonic()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_only_ours(folder):  # a cleaner has removed ours, and somebody has made this
                raise PermissionError(f"others can write to its folder {folder}")
            (folder / STORE).unlink(missing_ok=True)  # of the last session
            here = rank_environment(device, ranks_a_machine(ranks, settings), folder, settings)
            memory, token = FrameMemory.create(), secrets.token_hex(32)
            own = {TOKEN: token, FRAMES: memory.address, EXPECTED: json.dumps(source), PROTOCOL: str(VERSION)}
            environment = {**os.environ, **here, **own}
            self.process = WorkerProcess(torchrun_command(ranks, folder, settings), environment, folder)
            self.job_channel = self._await_ranks(token, memory, check)
        except (OSError, ProtocolError) as error:
            said = error.explanation if isinstance(error, ProtocolError) else Explanation(str(error))
            said = said.because("The worker group cannot be started: ")
            raise WorkerGroupError(*said) from error
        self.answered = time.monotonic()  # when rank 0 last did
        logging.info("[ParallelDiT] worker group ready after %.1f s", time.monotonic() - started)

    def _await_ranks(self, token: str, memory: FrameMemory, check: Check) -> HostChannel:
        """Connects both channels, and returns the job channel once rank 0 has said its first words there."""
        deadline, said = time.monotonic() + self.settings.start_seconds, None
        connection: socket.socket | None = None
        try:
            while connection is None or said is None:
                check()
                if self.process.exited.is_set():
                    reason = self.process.failure().reason.because("The worker group did not start. ")
                    raise WorkerGroupError(*reason)
                if time.monotonic() > deadline:
                    raise WorkerGroupError(
                        f"The worker group did not start in {self.settings.start_seconds:g} s.",
                        "If it only needs longer, raise start_seconds in the settings.",
                        self.process.log_tail(),
                    )
                try:
                    connection = connection or ask_for_channel(self.process.folder / CONTROL, token)
                    if wait([connection], POLL_SECONDS):
                        said, _ = HostChannel(connection, None).receive()
                except BROKEN_LINK:  # it does not listen yet, or has ended
                    connection = None
                    time.sleep(POLL_SECONDS)
            self.control = ControlClient(self.process.folder, token)
            return HostChannel(connection, memory if said["has_memory"] else None)
        except BaseException:  # ComfyUI's interrupt is not an Exception
            self.process.stop()
            raise

    @property
    def is_over(self) -> bool:
        return self.end_reason is not None or self.process.exited.is_set()

    def end(self, reason: Explanation | None = None) -> Explanation:
        """Ends the remaining processes, and returns the first reason given for the end.

        Without a reason, waits for torchrun's report.
        """
        with self.ending:
            if self.end_reason is None:
                if not reason and not self._await_report():
                    reason = self._who_has_gone()
                self.process.stop()
                self.end_reason = reason or self.process.failure().reason
        return self.end_reason

    def _await_report(self) -> bool:
        """Whether torchrun has ended, and so has written its report. On a busy CPU that takes a while after the
        ranks."""
        if self.process.exited.wait(REPORT_SECONDS):
            return True
        here = self._pids_here()
        return bool(here) and not any(map(is_alive, here)) and self.process.exited.wait(SLOW_REPORT_SECONDS)

    def _pids_here(self) -> list[int]:
        return self.pids[: ranks_a_machine(self.ranks, self.settings)]

    def _who_has_gone(self) -> Explanation:
        """Names the reason when torchrun cannot, because it waits for a rank that does not end."""
        pids = [] if self.settings.machines else self.pids  # other machines' processes are not known here
        gone = next((rank for rank, pid in enumerate(pids) if not is_alive(pid)), None)
        name = "A rank" if gone is None else f"Rank {gone} (process {pids[gone]})"
        tail = "" if gone is None else self.process.log_tail(gone)
        return Explanation(f"{name} ended and another did not; torchrun gave no reason.", details=tail)

    def close(self) -> None:
        """Ends the session and closes its sockets. Only the thread that makes its requests may call this."""
        self.end(WAS_STOPPED)
        self.job_channel.close()
        self.control.close()

    def request(
        self, header: Header, tensors: Tensors, check: Check, on_step: OnStep | None = None
    ) -> tuple[Header, Tensors]:
        """Sends a request and returns its reply. Large latents arrive on the device of the request's first tensor.

        Raises WorkerGroupError if the group dies, and RequestRefused in a callback of another request. An exception in
        `check` or `on_step` cancels the request.
        """
        self.await_cancelled(check)
        if self.operation:
            self.known.conditions = SentConditions()  # those that were to be sent are not
            raise RequestRefused("The ranks are at work on the sampling in which they are asked for this.")
        self.last_id += 1
        self.began, self.operation = time.monotonic(), header["op"]
        try:
            self.job_channel.send(encode({**header, "id": self.last_id}, tensors))
        except (ConnectionError, ProtocolError) as error:
            raise self._ended(error) from error
        except BaseException:  # all is copied before anything is sent, so no reply will come
            self.operation, self.known.conditions = None, SentConditions()
            raise
        try:
            device = next((tensor.device for tensor in tensors.values()), None)
            while True:
                check()  # at least once, even if the answer is already there
                self._await_message(check)
                reply, results = self.job_channel.receive(device)
                if "event" not in reply:
                    break
                if on_step:
                    on_step(reply, results.get("denoised"))
        except (ConnectionError, ProtocolError) as error:
            raise self._ended(error) from error
        except BaseException:  # ComfyUI's interrupt is not an Exception
            self.given_up = True
            try:
                self.control.order({"op": "cancel", "job": self.last_id})
            except ConnectionError:
                logging.info("[ParallelDiT] nothing to cancel: the worker group has died")
            raise
        self._end_request(reply)
        return reply, results

    def await_cancelled(self, check: Check, patience: float = math.inf) -> None:
        """Waits for the end of a cancelled request, if there is one, for at most `patience` seconds.

        The ranks may wait until its reply is read, and read no other request before that. Raises what `request` raises.
        """
        deadline = time.monotonic() + patience
        try:
            while self.given_up and self._await_message(check, deadline):
                reply, _ = self.job_channel.receive()
                if "event" not in reply:
                    self._end_request(reply)
        except (ConnectionError, ProtocolError) as error:
            raise self._ended(error) from error

    @property
    def has_lost_rank(self) -> bool:
        """Whether a rank on this machine has ended. torchrun sees that later. Just after a reply the system is not
        asked: it takes 0.1 ms a rank, in each step."""
        return time.monotonic() - self.replied > POLL_SECONDS and not all(map(is_alive, self._pids_here()))

    def _end_request(self, reply: Header) -> None:
        """Updates what the ranks hold after a reply."""
        self.operation, self.given_up, self.replied = None, False, time.monotonic()
        if reply.get("kind") in (FAILED, MEMORY):
            self.known = self.known.emptied()
        elif "error" in reply or not reply["has_model"]:
            self.known.conditions = SentConditions()  # the ranks may not have kept the new ones
        self.known.patched, self.known.sampling = reply["patched"], reply["sampling"]
        if not reply["has_model"]:  # it was dropped where its weights were moved, and the request ended early
            self.known.model = None

    def _ended(self, error: Exception) -> WorkerGroupError:
        unread = isinstance(error, ProtocolError)
        why = self.end(error.explanation.because("Its answer could not be read: ") if unread else None)
        doing = operation_of({"op": self.operation}).doing
        return WorkerGroupError(*why.because(f"The worker group ended while it was {doing}.\n"))

    def _await_message(self, check: Check, deadline: float = math.inf) -> bool:
        """Waits for a message of the ranks, or for the end of their channel, until `deadline`. Returns whether it
        came."""
        while not wait([self.job_channel.connection], POLL_SECONDS):
            check()
            if time.monotonic() > deadline:
                return False
        return True

    def check_progress(self, status: Header) -> None:
        """Ends the session if no rank has moved for too long in a request. The error has the Python stacks of those on
        this machine. status: the ranks'."""
        if not (operation := self.operation):  # read once: another thread ends the request
            return
        runs_model = bool(OPERATIONS[operation].latents)
        bound = STILL_SECONDS[status["exchanges"] if runs_model else ONCE if self.ranks > 1 else NEVER]
        if min(status["still"], time.monotonic() - self.began) > bound:
            reason = f"In {bound:.0f} s, no rank has sent, received or read anything: they are stuck."
            advice = "Queue the prompt again. If it happens again, report it with the details."
            self.end(Explanation(reason, advice, collect_stacks(self.process.folder, self._pids_here())))

    def check_life(self) -> None:
        """Ends the session if a rank has been silent for too long."""
        running = OPERATIONS.get(self.operation or "")
        patience = self.settings.silence_seconds * (LOADING_TIMES if running and running.moves_weights else 1)
        try:
            status = self.control.ask({"op": "status"}, patience / 2)
        except TimeoutError:
            beats = [time.monotonic() - self.answered]  # rank 0's
        except ConnectionError:
            if not self._await_report():
                self.end(Explanation("Rank 0 has closed its control channel."))
            return
        else:
            self.answered, self.pids, beats = time.monotonic(), status["pids"], status.get("beats", [])
            self.check_progress(status)
        dead = self._find_dead(beats, patience)
        if len(dead) == 1:
            ((rank, seen),) = dead.items()
            name = f"Rank {rank} (process {self.pids[rank]})" if self.pids else f"Rank {rank}"
            said = f"{name} has not answered for {patience:g} s: {seen}."
            self.end(Explanation(said, details=collect_stacks(self.process.folder, self._pids_here())))
        elif dead:
            names = ", ".join(map(str, dead))
            said = f"Ranks {names} have given no sign of life for {patience:g} s: their machine or torchrun is gone."
            self.end(Explanation(said))

    def _find_dead(self, beats: Sequence[float], patience: float) -> dict[int, str]:
        """Returns the dead ranks, each with what was seen of it. beats: by rank, the seconds of its silence."""
        here, dead = self._pids_here(), {}
        # The connection to another machine reports its silence with more detail. So wait a little for that.
        bound = patience + (MACHINE_SECONDS if self.settings.machines else 0)
        for rank, seconds in enumerate(beats):
            if seconds <= bound:
                self.silent.discard(rank)
                continue
            seen = explain_silence(here[rank]) if rank < len(here) else STUCK
            if seen or seconds > LOADING_TIMES * bound:
                dead[rank] = seen or STUCK
                continue
            if rank not in self.silent:
                logging.warning("[ParallelDiT] Rank %d has not answered for %.0f s; its process runs.", rank, seconds)
            self.silent.add(rank)
            if rank == 0:  # which collects the beats of the others
                return {}
        return dead
