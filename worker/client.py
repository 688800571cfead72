"""ComfyUI's side of the worker group: starts it on first use, talks to rank 0, notices when it dies."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .conditions import SentConditions
from .errors import Explanation, OutOfMemory, RequestRefused, WorkerGroupError
from .protocol import Header
from .restarts import Restarts
from .runs import Runs
from .sampler_call import SamplerCall
from .session import POLL_SECONDS, STOPPED, Check, OnStep, Session
from .settings import Settings, SettingsError
from .tensors import Tensors, UnsendableError
from .torchrun import ranks_a_machine

WATCH_SECONDS = 1.0
STATUS_SECONDS = 2.0
SETTLE_SECONDS = 10.0  # for a request that was given up to end, before it is parked


class WorkerGroup:
    """One persistent torchrun group: started by its first request, and again when it dies.

    device: "cuda" or "cpu". folder: for the ranks' logs.
    Every method that waits takes `check`, called about twenty times a second, which may raise to give up waiting; the
    ranks end what they were doing at the next step. All methods may be called by any thread; requests take turns.
    """

    def __init__(self, device: str, folder: Path, settings: Settings | None = None) -> None:
        self.device = device
        self.folder = folder
        self.settings = settings or Settings()
        self.lock = threading.RLock()
        self.restarts = Restarts(self.settings.restarts)
        self.session: Session | None = None
        self.phase = "stopped"  # or starting, restarting, failed; while a session runs, its ranks know
        self.changed = threading.Event()  # for one who follows the status, and clears it
        self.runs = Runs(self.changed)
        self.ranks = 0  # of the session, or of the last one
        self.note = ""
        self.last_death: str | None = None
        self.resident: object | None = None  # what answers for the model's memory in ComfyUI, and lives as long
        self.stops = 0
        self.loads = 0
        self.loaded: tuple[Header, Mapping[str, int]] | None = None
        self.adapted: str | None = None  # the key of the additions to the weights; empty while it is not known
        self.sent = SentConditions()

    def load(self, source: Header, plan: Mapping[str, int], ranks: int, check: Check, note: str = "") -> None:
        """Makes sure that `ranks` ranks run and hold this model under this plan; does nothing if they do already.

        source and plan: what the engine's ModelSource and ParallelPlan are made of, as JSON objects. note: what there
        is to say of the plan, for the status. Raises RequestRefused, WorkerGroupError.
        """
        with self.turn(check):
            self._ensure(ranks, check)
            self.note = note
            self.changed.set()
            if self.loaded == (source, plan):
                return
            self.loaded, self.sent = None, SentConditions()
            self.loads += 1
            self._request({"op": "load", "source": source, "plan": plan}, {}, check)
            self.loaded, self.adapted = (source, plan), None

    def adapt(self, key: str | None, build: Callable[[], tuple[list[Header], Tensors]], check: Check) -> None:
        """Makes sure that the loaded weights have these additions and no others; does nothing if they do already.

        key: tells them from all others; None where there are none. build: makes what the engine's Additions are made
        of, as JSON objects, and the tensors that these name.
        Raises RequestRefused, after which the model is loaded again, and WorkerGroupError.
        """
        with self.turn(check):
            if self.adapted == key:
                return
            additions, tensors = build()
            self.adapted = ""
            try:
                self._request({"op": "adapt", "additions": additions}, tensors, check)
            except BaseException:  # given up, the group drops its model as it does when it refuses
                self.loaded = None
                raise
            self.adapted = key

    def forward(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors, check: Check
    ) -> torch.Tensor:
        """One forward of the loaded model: the prediction, in the shape of the latents.

        Conditions that the group has from an earlier call are not sent again. Raises RequestRefused, WorkerGroupError.
        """
        with self.turn(check):
            keys, new, dropped = self.sent.exchange(conditions)
            header = {"op": "forward", "conditions": keys, "drop": dropped}
            tensors = {"latents": latents, "timestep": timestep_B, **new}
            return self._request(header, tensors, check, size=tuple(latents.shape))["prediction"]

    def sample(
        self, call: SamplerCall, tensors: Tensors, conditions: Tensors, negative: Tensors, check: Check, on_step: OnStep
    ) -> torch.Tensor:
        """A whole sampler call on the loaded model: the denoised latents.

        tensors: noise, and what else the call has of SAMPLER_TENSORS. negative: empty without guidance.
        on_step: called after every step. What it or `check` raises cancels the call at its next step.
        Raises RequestRefused, WorkerGroupError.
        """
        with self.turn(check):
            named = {("conditions", name): tensor for name, tensor in conditions.items()}
            named |= {("negative", name): tensor for name, tensor in negative.items()}
            keys, new, dropped = self.sent.exchange(named)
            header = {"op": "sample", "call": call.to_json(), "drop": dropped, "conditions": {}, "negative": {}}
            for (kind, name), key in keys.items():
                header[kind][name] = key
            size = tuple(tensors["noise"].shape)

            def noted(event: Header, denoised: torch.Tensor | None) -> None:
                self.runs.step("sample", event["seconds"], event["communication"], event["steps"])
                on_step(event, denoised)

            return self._request(header, {**tensors, **new}, check, noted, size)["latents"]

    def run_vae(
        self, direction: str, path: str, dtype: str, tensor: torch.Tensor, ranks: int, check: Check
    ) -> torch.Tensor:
        """Decodes latents or encodes images, see ParallelVAE, by the VAE in a file. Raises as `load` does.

        direction: decode or encode. ranks: how many to start, if none run.
        """
        with self.turn(check):
            session = self.session
            self._ensure(session.ranks if session else ranks, check)
            header = {"op": "vae", "direction": direction, "path": path, "dtype": dtype}
            return self._request(header, {"input": tensor}, check)["result"]

    def start(self, ranks: int, check: Check, stops: int | None = None) -> None:
        """Has a group run before its first request: with as many ranks as the last one, or else with `ranks`.

        stops: how often the group had been stopped when this was asked for; by default, until now. Raises as `load`
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
            if not self.is_running:
                self._ensure(self.ranks or ranks, check)
        finally:
            self.lock.release()

    @property
    def is_running(self) -> bool:
        return self.session is not None and not self.session.is_over

    def park(self, unload: bool = False, patience: float = 0.0) -> bool:
        """Frees the accelerators: the weights wait in the ranks' RAM, or with `unload`, are read again when next used.

        CPU ranks have no accelerator to free, and always unload. Raises nothing, since ComfyUI calls it outside of any
        node: does nothing where no group runs or a request is under way, for whose end it waits up to `patience`
        seconds, and only logs it when the group dies. Returns whether nothing is left on the accelerators.
        """
        if not self.lock.acquire(timeout=patience):
            return False
        try:
            session = self.session
            if session is None or session.is_over:
                return True
            session.settle(lambda: None, SETTLE_SECONDS)
            if session.operation:  # it still runs, or this is called from within its callback
                return False
            if not unload and self.device != "cpu":
                try:
                    self._request({"op": "park"}, {}, lambda: None)
                    return True
                except RequestRefused as refusal:
                    logging.warning("[ParallelDiT] the worker group unloads its model: %s", refusal)
            self._forget()
            self._request({"op": "unload"}, {}, lambda: None)
            return True
        except (WorkerGroupError, RequestRefused) as error:
            logging.error("[ParallelDiT] %s", error)
            return isinstance(error, WorkerGroupError)
        finally:
            self.lock.release()

    def device_bytes(self) -> int:
        """What rank 0 keeps of its accelerator, which is the first of those visible, as ComfyUI's own is; else 0."""
        ranks = self.status().get("memory", []) if self.device != "cpu" else []
        return ranks[0]["accelerator"] if ranks else 0

    def trace(self) -> bytes:
        """What the ranks did of late, as a Chrome trace in JSON.

        Raises RequestRefused, also while a job runs, and WorkerGroupError.
        """
        if not self.lock.acquire(blocking=False):
            raise RequestRefused("The worker group is busy with a job; ask for the trace again when it has ended.")
        try:
            return self._request({"op": "trace"}, {}, lambda: None)["trace"].numpy().tobytes()
        finally:
            self.lock.release()

    def status(self) -> dict[str, Any]:
        """State, process ids, what is loaded, and how often the group died lately; answered while a job runs.

        state: stopped, starting, ready, busy, parked, restarting or failed.
        """
        own = {"state": self.phase, "deaths": self.restarts.count(), "last_death": self.last_death, "note": self.note}
        session = self.session
        if session is None:
            return own
        try:
            session.told = session.questions.ask({"op": "status"}, STATUS_SECONDS)
            return {**own, **session.told}
        except ConnectionError:  # it has died
            return {**own, "state": "restarting" if session.is_over else "busy"}
        except TimeoutError:
            last = {} if session.is_over else session.told
            return {**last, **own, "state": "restarting" if session.is_over else "busy"}

    def stop(self) -> None:
        """Ends the group, and the job that it runs; the next request starts it again."""
        self.stops += 1
        session, self.session = self.session, None
        self._forget()
        self._enter("stopped")
        if session:
            session.end(STOPPED)

    def restart(self, ranks: int, check: Check) -> None:
        """Ends the group, forgets how often it died, and starts it again. Raises as `start` does."""
        stops = self.stops + 1  # with its own
        self.stop()
        self.restarts.forgive()
        self.start(ranks, check, stops)

    @contextlib.contextmanager
    def turn(self, check: Check) -> Iterator[None]:
        """One request, or one restart, at a time.

        For requests that belong together: nothing comes between them while this is entered, not a restart either, after
        which the model is there without its additions.
        """
        while not self.lock.acquire(timeout=POLL_SECONDS):
            check()
        try:
            yield
        finally:
            self.lock.release()

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.changed.set()

    def _forget(self) -> None:
        """What a new session does not have."""
        self.note = ""
        self.loaded, self.adapted, self.sent = None, None, SentConditions()

    def _request(
        self, header: Header, tensors: Tensors, check: Check, on_step: OnStep | None = None, size: Any = None
    ) -> Tensors:
        session = self.session
        if session is None:
            raise WorkerGroupError("The worker group does not run.", "Queue a prompt to start it.")
        kind = (header["op"], self.loads, size) if size else None
        self.changed.set()
        try:
            reply, results = session.request(header, tensors, check, on_step, kind)
        except WorkerGroupError as error:
            died = error.explanation
            raise WorkerGroupError(died.cause, self._what_now(session), died.details) from error
        except UnsendableError as error:
            self.sent = SentConditions()  # which believes that they have gone
            raise RequestRefused(str(error)) from error
        finally:
            self.changed.set()
        if "error" not in reply:
            if header["op"] == "forward":
                self.runs.step("forward", reply["seconds"], reply["communication"])
            return results
        self.sent = SentConditions()  # of a request that was refused, the ranks may not have taken them
        if reply.get("kind") == "memory":
            self._forget()
            raise OutOfMemory.parse(reply["error"])
        raise RequestRefused.parse(reply["error"])

    def _what_now(self, session: Session) -> str:
        """For the person whose prompt failed with the session."""
        if session.verdict == STOPPED:
            return "Queue the prompt again to start it."
        if self.restarts.count() >= self.restarts.most:
            return "It has died too often to be started again by itself: mend the cause, then restart the group."
        return "It is started again: queue the prompt again."

    def _ensure(self, ranks: int, check: Check) -> None:
        """Has a session of that many ranks run, after a pause if the last one died.

        Raises WorkerGroupError, and RequestRefused for ranks that the machines can't share.
        """
        try:
            ranks_a_machine(ranks, self.settings)
        except SettingsError as error:
            raise RequestRefused(str(error)) from error
        session = self.session
        if session and not session.is_over:
            self._settle(session, check)
        if session and session.is_over:
            self._bury(session)
        elif session and session.ranks != ranks:
            self.session = None
            session.close()
            self._forget()
        if self.session:
            return
        left = self.restarts.seconds_left()
        if left:
            self._enter("failed")
            last = Explanation.parse(self.last_death)
            raise WorkerGroupError(
                f"The worker group died {self.restarts.count()} times in ten minutes, and is left down for another "
                f"{left:.0f} s. The last time: {last.cause}",
                "Mend the cause, and restart the group or ComfyUI.",
                last.details,
            )
        self._start(ranks, check)

    def _settle(self, session: Session, check: Check) -> None:
        """Has a request that was given up end: its outcome can concern the next."""
        with contextlib.suppress(WorkerGroupError):  # if it has died of it, it is buried as any other
            reply = session.settle(check)
            if reply and reply.get("kind") == "memory":
                self._forget()

    def _bury(self, session: Session) -> None:
        """Lets go of a session that has died, and counts it."""
        self.session = None
        self.last_death = str(session.end())
        session.close()
        self._forget()
        self.restarts.note_death()
        self._enter("restarting")
        logging.error("[ParallelDiT] the worker group died. %s", self.last_death)

    def _start(self, ranks: int, check: Check) -> None:
        stops = self.stops

        def check_both() -> None:
            check()
            if self.stops != stops:
                raise WorkerGroupError("The worker group was stopped while it started.", "Queue the prompt again.")

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
            session = Session(ranks, self.device, self.settings, self.folder, check_both)
        except WorkerGroupError as error:
            if self.stops == stops:
                self.last_death = str(error)
                self._enter("failed")
            raise
        except BaseException:  # an interrupt is no Exception in ComfyUI
            self._enter("restarting" if self.phase == "restarting" else "stopped")
            raise
        self._forget()
        self.session = session
        self._enter("ready")
        if self.stops != stops:  # just now
            self.stop()
            check_both()
        threading.Thread(target=self._follow, args=(session,), name="paralleldit-watch", daemon=True).start()

    def _follow(self, session: Session) -> None:
        """Watches one session to its end; if it died, starts the next one and loads the model again."""
        while not session.process.exited.wait(WATCH_SECONDS):
            session.check_life()
        self.changed.set()
        stops, loaded, note = self.stops, self.loaded, self.note

        def check() -> None:
            if self.stops != stops:
                raise WorkerGroupError("The worker group was stopped.")

        try:
            with self.turn(check):
                if self.session is session:  # else it was stopped, or a prompt was quicker
                    self._ensure(session.ranks, check)
                    if loaded:
                        self.load(*loaded, session.ranks, check, note)
        except (WorkerGroupError, RequestRefused) as error:
            logging.error("[ParallelDiT] %s", error)
