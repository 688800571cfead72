"""Keeps a worker group running: starts its session, follows it, and where it dies restarts it, with back-off."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import Explanation, RequestRefused, WorkerGroupError
from ..launch.torchrun import ranks_a_machine
from ..settings import Settings, SettingsError
from ..wire.protocol import Header
from .known_state import KnownState
from .restarts import Restarts
from .session import POLL_SECONDS, WAS_STOPPED, Check, Session

WATCH_SECONDS = 1.0
STATUS_SECONDS = 2.0


class Supervisor:
    """One session at a time; requests to it, and restarts, take turns.

    device, folder, settings, `check`: as a WorkerGroup's. changed: set with each change. revive: called within the turn
    once a session runs in place of one that died, with what that one's ranks held.
    All methods may be called by any thread.
    """

    def __init__(
        self,
        device: str,
        folder: Path,
        settings: Settings,
        changed: threading.Event,
        revive: Callable[[KnownState, Check], None],
    ) -> None:
        self.device = device
        self.folder = folder
        self.settings = settings
        self.changed = changed
        self.revive = revive
        self.lock = threading.RLock()
        self.restarts = Restarts(settings.restarts)
        self.session: Session | None = None
        self.phase = "stopped"  # or starting, restarting, failed; while a session runs, its ranks know
        self.ranks = 0  # of the session, or of the last one
        self.last_death: Explanation | None = None
        self.stops = 0
        self.began: float | None = None  # when the start that is under way did
        self.depth, self.asked = 0, 0.0  # of the turn that is taken; when it was asked for
        self.failed_ahead: tuple[float, Explanation] | None = None  # when, and why

    @contextlib.contextmanager
    def turn(self, check: Check) -> Iterator[None]:
        """One request, or one restart, at a time."""
        asked = time.monotonic()
        while not self.lock.acquire(timeout=POLL_SECONDS):
            check()
        self.depth += 1
        if self.depth == 1:
            self.asked = asked
        try:
            yield
        finally:
            self.depth -= 1
            self.lock.release()

    @contextlib.contextmanager
    def turn_within(self, seconds: float) -> Iterator[bool]:
        """A turn, if it comes in that time; gives whether it has."""
        has_come = self.lock.acquire(timeout=seconds)
        try:
            yield has_come
        finally:
            if has_come:
                self.lock.release()

    def ensure(self, ranks: int, check: Check, exactly: bool = False, source: Header | None = None) -> None:
        """Within a turn, has a session of that many ranks run, after a pause if the last one died.

        exactly: no more either, of which a plan leaves those idle that it does not need; on several machines so in any
        case, as each has its share of a plan. source: of the model that will be asked for; ranks that have ComfyUI with
        other arguments than it takes give way to others.
        Raises WorkerGroupError, and RequestRefused for ranks that the machines can't share.
        """
        try:
            ranks_a_machine(ranks, self.settings)
        except SettingsError as error:
            raise RequestRefused(*error.explanation) from error
        failed, self.failed_ahead = self.failed_ahead, None
        if failed and failed[0] > self.asked:
            raise WorkerGroupError(*failed[1])
        exactly = exactly or len(self.settings.machines) > 1
        session = self.session
        if session and not session.is_over:
            with contextlib.suppress(WorkerGroupError):  # a death of what was given up is recorded below
                session.settle(check)
        is_other = bool(session and source and session.known.imports_otherwise(source))
        if session and session.is_over:
            self._record_death(session)
        elif session and (is_other or (session.ranks != ranks if exactly else session.ranks < ranks)):
            self.session = None
            session.close()
        if self.session:
            return
        left = self.restarts.seconds_left()
        if left:
            self._enter("failed")
            last = (self.last_death or Explanation("")).because(
                f"The worker group died {self.restarts.count()} times in ten minutes, and is left down for another "
                f"{left:.0f} s. The last time: "
            )
            raise WorkerGroupError(last.cause, "Mend the cause, and restart the group or ComfyUI.", last.details)
        self._start(ranks, check, source)

    def start_ahead(self, ranks: int, wanted: Callable[[], bool], source: Header | None = None) -> None:
        """Has a session of that many ranks start in a thread of its own, while who will need it does something else.

        wanted: whether it is to, asked once its turn has come. Where it fails, who waits for the turn meanwhile is
        told; who comes later tries again.
        """
        stops = self.stops

        def check() -> None:
            if self.stops != stops:
                raise WorkerGroupError("The worker group was stopped.", "Queue the prompt again to start it.")

        def run() -> None:
            try:
                with self.turn(check):
                    if not wanted():
                        return
                    try:
                        self.ensure(ranks, check, source=source)
                    except WorkerGroupError as error:
                        self.failed_ahead = time.monotonic(), error.explanation
                        raise
            except (WorkerGroupError, RequestRefused) as error:
                logging.error("[ParallelDiT] %s", error)

        threading.Thread(target=run, name="paralleldit-ahead", daemon=True).start()

    def start(self, ranks: int, check: Check, stops: int | None = None) -> None:
        """Has a session run before its first request: with as many ranks as the last one, or else with `ranks`.

        stops: how often the group had been stopped when this was asked for; by default, until now. Raises as `ensure`
        does, and WorkerGroupError if it is stopped meanwhile.
        """
        stops = self.stops if stops is None else stops
        while not self.lock.acquire(timeout=POLL_SECONDS):
            check()
            if self.is_running:  # a prompt was quicker
                return
        try:
            if self.stops != stops:
                raise WorkerGroupError("The worker group was stopped while it started.")
            self.failed_ahead = None  # who asks for it by hand has it tried again
            if not self.is_running:
                self.ensure(self.ranks or ranks, check)
        finally:
            self.lock.release()

    @property
    def is_running(self) -> bool:
        return self.session is not None and not self.session.is_over

    def stop(self) -> None:
        """Ends the session, and the job that it runs; `ensure` starts the next one."""
        self.stops += 1
        self._end_session()

    def restart(self, ranks: int, check: Check) -> None:
        """Ends the session, forgets how often one died, and starts the next. Raises as `start` does."""
        stops = self.stops + 1  # with its own
        self.stop()
        self.restarts.forgive()
        self.start(ranks, check, stops)

    def dismiss(self) -> None:
        """Forgets why the last session died, unless that keeps the group down."""
        if self.phase != "failed":
            self.last_death = None
            self.changed.set()

    def status(self) -> dict[str, Any]:
        """State, how often the group died lately, and what its ranks tell; answered while a job runs.

        given_up: whether the last request was, the ranks being still at it if they are busy.
        """
        last_death = str(self.last_death) if self.last_death else None
        own: dict[str, Any] = {"state": self.phase, "deaths": self.restarts.count(), "last_death": last_death}
        session = self.session
        own |= {"note": "", "remarks": [], "name": "", "given_up": False}
        if session:
            remarks, name = session.known.remarks, session.known.name
            words = " ".join(each["text"] for each in remarks)
            own |= {"note": words, "remarks": [*remarks], "name": name, "given_up": session.given_up}
        if (began := self.began) is not None:
            own["starting"] = time.monotonic() - began
        if session is None:
            return own
        try:
            session.last_status = session.control.ask({"op": "status"}, STATUS_SECONDS)
            return {**own, **session.last_status}
        except ConnectionError:  # it has died
            return {**own, "state": "restarting" if session.is_over else "busy"}
        except TimeoutError:
            last = {} if session.is_over else session.last_status
            return {**last, **own, "state": "restarting" if session.is_over else "busy"}

    def what_now(self, session: Session) -> str:
        """For the person whose prompt failed with the session."""
        if session.end_reason == WAS_STOPPED:
            return "Queue the prompt again to start it."
        if self.restarts.count() >= self.restarts.most:
            return "It has died too often to be started again by itself: mend the cause, then restart the group."
        return "It is started again: queue the prompt again."

    def _end_session(self) -> None:
        session, self.session = self.session, None
        self._enter("stopped")
        if session:
            session.end(WAS_STOPPED)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.changed.set()

    def _record_death(self, session: Session) -> None:
        """Lets go of a session that has died, and counts it."""
        self.session = None
        self.last_death = session.end()
        session.close()
        self.restarts.note_death()
        self._enter("restarting")
        logging.error("[ParallelDiT] the worker group died. %s", self.last_death)

    def _start(self, ranks: int, check: Check, source: Header | None) -> None:
        stops = self.stops

        def check_both() -> None:
            check()
            if self.stops != stops:
                raise WorkerGroupError("The worker group was stopped while it started.", "Queue the prompt again.")

        self.began = time.monotonic()
        try:
            if self.phase == "restarting":
                resume = time.monotonic() + self.restarts.pause()
                while time.monotonic() < resume:
                    check_both()
                    time.sleep(POLL_SECONDS)
            else:
                self._enter("starting")
            logging.info("[ParallelDiT] starting %d worker ranks on %s", ranks, self.device)
            self.ranks = ranks
            session = Session(ranks, self.device, self.settings, self.folder, check_both, source)
        except WorkerGroupError as error:
            if self.stops == stops:
                self.last_death = error.explanation
                self._enter("failed")
            raise
        except BaseException:  # an interrupt is no Exception in ComfyUI
            self._enter("restarting" if self.phase == "restarting" else "stopped")
            raise
        finally:
            self.began = None
        self.session = session
        self._enter("ready")
        if self.stops != stops:  # just now
            self._end_session()
            check_both()
        threading.Thread(target=self._follow, args=(session,), name="paralleldit-watch", daemon=True).start()

    def _follow(self, session: Session) -> None:
        """Watches one session to its end; if it died, starts the next one and has it revived."""
        while not session.process.exited.wait(WATCH_SECONDS):
            session.check_life()
        self.changed.set()
        # A copy: the request that the ranks died of may take back the model once it fails.
        stops, known = self.stops, copy.copy(session.known)

        def check() -> None:
            if self.stops != stops:
                raise WorkerGroupError("The worker group was stopped.")

        try:
            with self.turn(check):
                if self.session is session:  # else it was stopped, or a prompt was quicker
                    self.ensure(session.ranks, check)
                    self.revive(known, check)
        except (WorkerGroupError, RequestRefused) as error:
            logging.error("[ParallelDiT] %s", error)
        finally:
            with self.lock:  # whoever was in a request of it has had its end
                session.close()
