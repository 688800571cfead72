"""ComfyUI's side of the worker group: starts it on first use, talks to rank 0, notices when it dies."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .conditions import SentConditions
from .endpoint import Endpoint
from .lifetime import PARENT
from .process import WorkerProcess
from .protocol import ConnectionClosed, Header, decode, receive_frame, send_frame
from .sampler_call import SamplerCall
from .tensors import Tensors

START_SECONDS = 300
POLL_SECONDS = 0.05

Check = Callable[[], None]
OnStep = Callable[[Header, torch.Tensor | None], None]  # the event, and the estimate of the clean latents if it has one


class WorkerGroupError(RuntimeError):
    """The worker group did not start, or died; it is started again by the next request."""


class RequestRefused(ValueError):
    """The worker group cannot serve this request, and says why; it lives on."""


class WorkerGroup:
    """One persistent torchrun group on this machine.

    device: "cuda" or "cpu". log_folder: where the ranks' logs go; emptied at each start.
    Every method that waits takes `check`, called about twenty times a second, which may raise to give up waiting; the
    group then finishes what it was doing, and its late answer is dropped.
    """

    def __init__(self, device: str, log_folder: Path) -> None:
        self.device = device
        self.log_folder = log_folder
        self.lock = threading.RLock()
        self.control_lock = threading.Lock()
        self.process: WorkerProcess | None = None
        self.channels: dict[str, socket.socket] = {}
        self.ranks = 0
        self.loaded: tuple[Header, Mapping[str, int]] | None = None
        self.adapted: str | None = None  # the key of the additions to the weights; empty while it is not known
        self.sent = SentConditions()
        self.last_id = 0

    def load(self, source: Header, plan: Mapping[str, int], ranks: int, check: Check) -> None:
        """Makes sure that `ranks` ranks run and hold this model under this plan; does nothing if they do already.

        source and plan: what the engine's ModelSource and ParallelPlan are made of, as JSON objects.
        Raises RequestRefused, WorkerGroupError.
        """
        with self.lock:
            if self.loaded == (source, plan) and not self.process.exited.is_set():
                return
            if self.process and (self.ranks != ranks or self.process.exited.is_set()):
                self.stop()
            if not self.process:
                self._start(ranks, check)
            self.loaded = None
            self.sent = SentConditions()
            self._request({"op": "load", "source": source, "plan": plan}, {}, check)
            self.loaded, self.adapted = (source, plan), None

    def adapt(self, key: str | None, build: Callable[[], tuple[list[Header], Tensors]], check: Check) -> None:
        """Makes sure that the loaded weights have these additions and no others; does nothing if they do already.

        key: tells them from all others; None where there are none. build: makes what the engine's Additions are made
        of, as JSON objects, and the tensors that these name.
        Raises RequestRefused, after which the model is loaded again, and WorkerGroupError.
        """
        with self.lock:
            if self.adapted == key:
                return
            additions, tensors = build()
            self.adapted = ""
            try:
                self._request({"op": "adapt", "additions": additions}, tensors, check)
            except RequestRefused:
                self.loaded = None
                raise
            self.adapted = key

    def forward(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors, check: Check
    ) -> torch.Tensor:
        """One forward of the loaded model: the prediction, in the shape of the latents.

        Conditions that the group has from an earlier call are not sent again. Raises RequestRefused, WorkerGroupError.
        """
        with self.lock:
            keys, new, dropped = self.sent.exchange(conditions)
            header = {"op": "forward", "conditions": keys, "drop": dropped}
            return self._request(header, {"latents": latents, "timestep": timestep_B, **new}, check)["prediction"]

    def sample(
        self, call: SamplerCall, tensors: Tensors, conditions: Tensors, negative: Tensors, check: Check, on_step: OnStep
    ) -> torch.Tensor:
        """A whole sampler call on the loaded model: the denoised latents.

        tensors: noise, and what else the call has of SAMPLER_TENSORS. negative: empty without guidance.
        on_step: called after every step. What it or `check` raises cancels the call at its next step.
        Raises RequestRefused, WorkerGroupError.
        """
        with self.lock:
            named = {("conditions", name): tensor for name, tensor in conditions.items()}
            named |= {("negative", name): tensor for name, tensor in negative.items()}
            keys, new, dropped = self.sent.exchange(named)
            header = {"op": "sample", "call": call.to_json(), "drop": dropped, "conditions": {}, "negative": {}}
            for (kind, name), key in keys.items():
                header[kind][name] = key
            return self._request(header, {**tensors, **new}, check, on_step)["latents"]

    def run_vae(
        self, direction: str, path: str, dtype: str, tensor: torch.Tensor, ranks: int, check: Check
    ) -> torch.Tensor:
        """Decodes latents or encodes images, see ParallelVAE, by the VAE in a file. Raises as `load` does.

        direction: decode or encode. ranks: how many to start, if none run.
        """
        with self.lock:
            if self.process and self.process.exited.is_set():
                self.stop()
            if not self.process:
                self._start(ranks, check)
            header = {"op": "vae", "direction": direction, "path": path, "dtype": dtype}
            return self._request(header, {"input": tensor}, check)["result"]

    def status(self) -> dict[str, Any]:
        """State, process ids and what is loaded, answered while a job runs. Raises WorkerGroupError if it died."""
        with self.control_lock:
            control = self.channels.get("control")
            if control is None:
                return {"state": "starting" if self.process else "stopped"}
            return self._ask(control, {"op": "status"})

    def _cancel(self, job: int) -> None:
        """Has a job end at its next step; its answer is not waited for."""
        with self.control_lock, contextlib.suppress(WorkerGroupError):
            self._ask(self.channels["control"], {"op": "cancel", "job": job})

    def _ask(self, control: socket.socket, request: Header) -> dict[str, Any]:
        try:
            send_frame(control, request)
            return decode(receive_frame(control))[0]
        except (ConnectionClosed, ConnectionError) as error:
            raise WorkerGroupError("The worker group has died.") from error

    def stop(self) -> None:
        """Ends the group; the next request starts it again."""
        for channel in self.channels.values():
            channel.close()
        if self.process:
            self.process.stop()
        self.process, self.channels, self.loaded, self.ranks = None, {}, None, 0

    def _start(self, ranks: int, check: Check) -> None:
        logging.info("[ParallelDiT] starting %d worker ranks on %s", ranks, self.device)
        started = time.monotonic()
        shutil.rmtree(self.log_folder, ignore_errors=True)
        endpoint = Endpoint()
        try:
            self.process = WorkerProcess(ranks, self._environment(ranks, endpoint), self.log_folder)
            while not endpoint.accept(POLL_SECONDS):
                check()
                if self.process.exited.is_set():
                    raise WorkerGroupError(f"The worker group did not start. {self.process.reason()}")
                if time.monotonic() - started > START_SECONDS:
                    raise WorkerGroupError(f"The worker group did not start in time. {self.process.log_tail()}")
        except BaseException:
            self.stop()
            raise
        finally:
            endpoint.close()
        self.channels, self.ranks = endpoint.channels, ranks
        logging.info("[ParallelDiT] worker group ready after %.1f s", time.monotonic() - started)

    def _environment(self, ranks: int, endpoint: Endpoint) -> dict[str, str]:
        return {
            **os.environ,
            **endpoint.environment(),
            PARENT: str(os.getpid()),
            "PARALLELDIT_DEVICE": self.device,
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
            "OMP_WAIT_POLICY": "PASSIVE",  # ranks on the CPU share the cores with ComfyUI; spinning threads stall both
            "HF_HUB_OFFLINE": "1",
        }

    def _request(self, header: Header, tensors: Tensors, check: Check, on_step: OnStep | None = None) -> Tensors:
        if not self.channels:
            raise WorkerGroupError("The worker group is not running.")
        self.last_id += 1
        job = self.channels["job"]
        try:
            send_frame(job, {**header, "id": self.last_id}, tensors)
            reply, results = self._next_reply(job, check)
            while "event" in reply:
                on_step(reply, results.get("denoised"))
                reply, results = self._next_reply(job, check)
        except (ConnectionClosed, ConnectionError) as error:
            self.process.exited.wait(10)
            reason = self.process.reason()
            self.stop()
            raise WorkerGroupError(
                f"The worker group died during '{header['op']}'; queue the prompt again to restart it.\n{reason}"
            ) from error
        except BaseException:  # an interrupt is no Exception in ComfyUI
            self._cancel(self.last_id)
            raise
        if "error" in reply:
            raise RequestRefused(reply["error"])
        return results

    def _next_reply(self, job: socket.socket, check: Check) -> tuple[Header, Tensors]:
        """The next frame that answers the last request; late answers to those given up are dropped."""
        while True:
            while not select.select([job], [], [], POLL_SECONDS)[0]:
                check()
            reply, results = decode(receive_frame(job))
            if reply.get("id") == self.last_id:
                return reply, results
