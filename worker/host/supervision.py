"""Keeps a worker group running: starts its session, watches it, and restarts it with back-off when it dies."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Explanation, NoWorkerGroup, RequestRefused, WorkerGroupError
from ..launch.torchrun import ranks_a_machine
from ..settings import Settings, SettingsError
from ..wire.protocol import Header
from .known_state import KnownState
from .restarts import Restarts
from .runs import Runs
from .session import POLL_SECONDS, WAS_STOPPED, Check, Session

WATCH_SECONDS = 1.0
FIX_AND_RESTART = "Correct the cause, then restart the group or ComfyUI."
STATUS_SECONDS = 2.0


class Setup(NamedTuple):
    """How sessions run. device: one of DEVICES. impossible: why this system can have no session; None if it can."""

    device: str
    settings: Settings
    impossible: Explanation | None = None


class Supervisor:
    """Runs one session at a time. Requests and restarts take turns. Any thread may call any method.

    Every method that waits takes `check` and calls it about twenty times a second. `check` may raise to stop waiting;
    the ranks then end their work at the next step.
    changed: set when the status changes; its reader clears it. phase: stopped, starting, restarting or failed; while a
    session runs, `status` of its ranks says more. ranks: of the session, or of the last one; 0 before the first.
    """

    def __init__(
        self, device: str, folder: Path, settings: Settings | None = None, impossible: Explanation | None = None
    ) -> None:
        """folder: for the ranks' logs. The others: see Setup."""
        self.device, self.settings, self.impossible = device, settings or Settings(), impossible
        self.coming: Setup | None = None  # once the session has ended, unless it dies
        self.folder = folder
        self.changed = threading.Event()
        self.runs = Runs(self.changed)
        self.lock = threading.RLock()
        self.restarts = Restarts(self.settings.restarts)
        self.session: Session | None = None
        self.phase = "stopped"
        self.ranks = 0
        self.source: Header | None = None  # of the model that was asked for last
        self.last_death: Explanation | None = None
        self.stops = 0
        self.began: float | None = None  # when the current start began

    def revive(self, known: KnownState, check: Check) -> None:
        """Called within the turn after a new session has replaced a dead one, with what the dead one's ranks held."""

    def configure(self, setup: Setup) -> None:
        """Sets how the next session runs. A session keeps its setup, and hands it on if it dies."""
        self.coming = setup if setup != (self.device, self.settings, self.impossible) else None
        self._enter(self.phase)

    @contextlib.contextmanager
    def turn(self, check: Check = lambda: None, seconds: float = math.inf) -> Iterator[bool]:
        """While entered, no other request runs, and no restart, which would drop the model's patches. Yields whether
        the turn has come within so many seconds."""
        deadline = time.monotonic() + seconds
        while not (has_come := self.lock.acquire(timeout=min(seconds, POLL_SECONDS))) and time.monotonic() < deadline:
            check()
        try:
            yield has_come
        finally:
            if has_come:
                self.lock.release()

    def ensure(self, ranks: int, check: Check, exactly: bool = False, source: Header | None = None) -> None:
        """Makes sure that a session of that many ranks runs. Pauses first if the last one died. Called within a turn.

        exactly: no more ranks either; by default a plan leaves additional ranks idle. Several machines always need the
        exact number, because each has its share of the plan. source: of the model that will be loaded, by default the
        last one, whose imports ranks do as they start; ranks that imported ComfyUI with other arguments are restarted.
        A start that fails is retried. Raises NoWorkerGroup if no group can start, WorkerGroupError if the group is
        stopped meanwhile, and RequestRefused for a number that the machines can't share.
        """
        check = self.unless_stopped(check)
        try:
            ranks_a_machine(ranks, self.settings)
        except SettingsError as error:
            raise RequestRefused(*error.explanation) from error
        exactly = exactly or len(self.settings.machines) > 1
        session = self.session
        if session and not session.is_over:
            with contextlib.suppress(WorkerGroupError):  # if it dies meanwhile, that is recorded below
                session.await_cancelled(check)
            if session.has_lost_rank:
                session.end()
        self.source = source or self.source
        is_other = bool(session and source and session.known.needs_other_import(source))
        check()
        if session and session.is_over:
            self._record_death(session)
        elif session and (is_other or (session.ranks != ranks if exactly else session.ranks < ranks)):
            self.session = None
            session.close()
            self._take_setup()
        if self.session:
            return
        if down := self.down:
            self._enter("failed")
            raise NoWorkerGroup(*down)
        self._start_in_tries(ranks, check)

    @property
    def down(self) -> Explanation | None:
        """Why no session can start: on this system, for some minutes, or until a restart. None if one runs or can
        start."""
        if self.impossible:
            return self.impossible
        left = 0.0 if self.is_running else self.restarts.seconds_left()
        if not left:
            return None
        last = self.last_death or Explanation("")
        return last.because(f"{self.restarts.why}, so it stays down for another {left:.0f} s. The last time: ").advised(
            FIX_AND_RESTART
        )

    def start_ahead(self, ranks: int, source: Header | None = None) -> None:
        """Starts a session of that many ranks in another thread, unless a sampling runs when the turn has come.

        Does nothing while no session can start. source: of the model that will be loaded.
        """
        check = self.unless_stopped()
        if self.down:
            return

        def run() -> None:
            try:
                with self.turn(check):
                    if not self.runs.current:
                        self.ensure(ranks, check, source=source)
            except (WorkerGroupError, RequestRefused) as error:
                logging.error("[ParallelDiT] %s", error)

        threading.Thread(target=run, name="paralleldit-ahead", daemon=True).start()

    def start(self, ranks: int, stops: int | None = None) -> None:
        """Starts a session before its first request, with as many ranks as the last one had; at first, with `ranks`.

        stops: see `unless_stopped`. Raises what `ensure` raises.
        """
        check = self.unless_stopped(stops=stops)
        while not self.lock.acquire(timeout=POLL_SECONDS):
            check()
            if self.is_running:  # a prompt was quicker
                return
        try:
            check()
            self.restarts.note_start()
            if not self.is_running:
                self.ensure(self.ranks or ranks, check)
        finally:
            self.lock.release()

    @property
    def is_running(self) -> bool:
        return self.session is not None and not self.session.is_over

    def stop(self) -> None:
        """Ends the session and its job. The next sampling starts it again."""
        self.runs.end(WAS_STOPPED)
        self.stops += 1
        self._end_session()

    def restart(self, ranks: int) -> None:
        """Ends the session, forgets earlier deaths, and starts the next one. Raises what `start` raises."""
        stops = self.stops + 1  # counts the stop below
        self.stop()
        self.restarts.forgive()
        self.start(ranks, stops)

    def dismiss(self) -> None:
        """Forgets why the last session died, because a person has read it. A group that stays down keeps it."""
        if self.phase != "failed":
            self.last_death = None
            self.changed.set()

    def status(self) -> dict[str, Any]:
        """Returns the state, the number of recent deaths, and the ranks' own status. Works while a job runs.

        state: stopped, starting, ready, busy, parked, restarting or failed.
        given_up: the last request was cancelled; if the ranks are busy, they still work on it.
        outdated: the settings have changed since the session started.
        """
        session, last_death = self.session, str(self.last_death) if self.last_death else None
        known = session.known if session else KnownState()
        own: dict[str, Any] = {"state": self.phase, "deaths": self.restarts.count(), "last_death": last_death}
        own |= {"note": " ".join(each["text"] for each in known.remarks), "remarks": [*known.remarks]}
        own |= {"name": known.name, "given_up": bool(session and session.given_up), "outdated": bool(self.coming)}
        if (began := self.began) is not None:
            own["starting"] = time.monotonic() - began
        if session is None:
            return own
        lost = {"state": "restarting"} if session.is_over or session.has_lost_rank else {}
        try:
            session.last_status = session.control.ask({"op": "status"}, STATUS_SECONDS)
            is_parked = session.known.is_parked and session.last_status["state"] == "ready"
            parked = {"state": "parked"} if is_parked else {}
            return {**own, **session.last_status, **parked, **lost}
        except (ConnectionError, TimeoutError):
            last = {} if lost else session.last_status
            return {**last, **own, "state": "busy", **lost}

    def advise(self, session: Session) -> str:
        """Returns the advice for the person whose prompt failed together with the session."""
        if session.end_reason == WAS_STOPPED:
            return "Queue the prompt again to start it."
        if self.restarts.count() >= self.restarts.most:
            return "It died too often and stays down. Correct the cause, then restart the group."
        return "It restarts by itself. Queue the prompt again."

    def unless_stopped(self, check: Check = lambda: None, stops: int | None = None) -> Check:
        """Returns a check that also raises WorkerGroupError once the group was stopped more than `stops` times; by
        default, from now on."""
        stops = self.stops if stops is None else stops

        def check_both() -> None:
            check()
            if self.stops != stops:
                raise WorkerGroupError("The worker group was stopped.", "Queue the prompt again to start it.")

        return check_both

    def _end_session(self) -> None:
        session, self.session = self.session, None
        self._enter("stopped")
        if session:
            session.end(WAS_STOPPED)

    def _take_setup(self) -> None:
        """Takes the coming setup, whose number of ranks may be another."""
        coming, self.coming = self.coming, None
        if coming:
            (self.device, self.settings, self.impossible), self.ranks = coming, 0
            self.restarts.most = self.settings.restarts

    def _enter(self, phase: str) -> None:
        self.phase = phase
        if phase in ("stopped", "failed"):
            self._take_setup()
        self.changed.set()

    def _record_death(self, session: Session) -> None:
        """Closes a session that has died, and counts the death."""
        self.phase = "restarting"  # first: nobody may see a group that is ready, but has no session
        self.session = None
        self.last_death = session.end()
        session.close()
        self.restarts.note_death()
        self.runs.died(self.last_death)
        self._enter("restarting")
        logging.error("[ParallelDiT] the worker group died. %s", self.last_death)

    def _start_in_tries(self, ranks: int, check: Check) -> None:
        """Starts a session. If that fails, tries again with back-off, but not after it has taken too long."""
        while True:
            began = time.monotonic()
            try:
                return self._start(ranks, check)
            except WorkerGroupError as error:
                check()  # it may have failed because it was stopped
                self.last_death = error.explanation
                self.restarts.note_failed_start()
                down = self.down
                if down or time.monotonic() - began >= self.settings.start_seconds:
                    self._enter("failed")
                    raise NoWorkerGroup(*(down or error.explanation.advised(FIX_AND_RESTART))) from error
                logging.warning("[ParallelDiT] The worker group did not start, and is started again. %s", error)

    def _start(self, ranks: int, check: Check) -> None:
        self.began = time.monotonic()
        try:
            if self.phase != "restarting":
                self._enter("starting")
            resume = time.monotonic() + self.restarts.pause(self.phase == "restarting")
            while time.monotonic() < resume:
                check()
                time.sleep(POLL_SECONDS)
            logging.info("[ParallelDiT] starting %d worker ranks on %s", ranks, self.device)
            self.ranks = ranks
            session = Session(ranks, self.device, self.settings, self.folder, check, self.source)
        except BaseException:  # ComfyUI's interrupt is not an Exception
            self._enter("restarting" if self.phase == "restarting" else "stopped")
            raise
        finally:
            self.began = None
        self.session = session
        self.restarts.note_start()
        self._enter("ready")
        try:
            check()
        except BaseException:  # it was stopped at the last moment
            self._end_session()
            raise
        threading.Thread(target=self._follow, args=(session,), name="paralleldit-watch", daemon=True).start()

    def _follow(self, session: Session) -> None:
        """Watches one session until its end. If it died, starts the next one and revives its model."""
        session.check_life()  # at once: until then, the ranks' processes are not known
        while not session.process.exited.wait(WATCH_SECONDS):
            session.check_life()
        self.changed.set()
        # A copy, because the request that killed the ranks may clear the model when it fails.
        check, known = self.unless_stopped(), copy.copy(session.known)
        try:
            with self.turn(check):
                if self.session is session:  # otherwise it was stopped, or a prompt was quicker
                    self.ensure(session.ranks, check)
                    self.revive(known, check)
        except (WorkerGroupError, RequestRefused) as error:
            logging.error("[ParallelDiT] %s", error)
        finally:
            with self.lock:  # no request uses it any more
                session.close()
