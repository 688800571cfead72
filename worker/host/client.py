"""ComfyUI's interface to the worker group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from ..errors import NoRoom, OutOfMemory, RequestRefused, WorkerGroupError
from ..wire import operations as ops
from ..wire.protocol import MEMORY, NO_ROOM, Header
from ..wire.sampler_call import SamplerCall
from ..wire.tensors import Tensors
from ..wire.tree import PREDICTION, Arguments, pack
from .known_state import KnownState, SentConditions
from .session import Check, OnStep
from .supervision import Supervisor

CANCEL_SECONDS = 10.0  # before parking, the longest wait for the end of a cancelled request

OnReply = Callable[[Header, Tensors], None]


class WorkerGroup(Supervisor):
    """One persistent torchrun group. Its first request starts it; it is restarted when it dies. Requests take turns."""

    resident: object | None = None  # the patcher that reports the model's memory to ComfyUI, kept alive

    @property
    def is_on_comfyuis_card(self) -> bool:
        """Whether rank 0 computes on ComfyUI's accelerator, the first visible one."""
        return self.device != "cpu" and (not self.settings.gpus or 0 in self.settings.gpus)

    @property
    def loaded(self) -> tuple[Header, Header] | None:
        """Source and plan of the model that the ranks hold, even if it is parked."""
        return self._known.model

    def load(
        self, source: Header, plan: Header, ranks: int, check: Check, remarks: Sequence[Header] = (), name: str = ""
    ) -> str:
        """Makes sure that `ranks` ranks run and use this model under this plan. Does nothing if they already do.

        If more ranks run, the others stay idle. Ranks that imported ComfyUI with other arguments are restarted. Returns
        in words which other models stay on the devices, or do not; empty if there are none.
        source and plan: a HostSource and a ParallelPlan as JSON objects. remarks: sentences about the plan, for the
        status. name: of the model, as the person chose it, for the status. Raises RequestRefused and WorkerGroupError.
        """
        with self.turn(check):
            go_on = self.unless_stopped(check)
            self.runs.check_ended()  # after the line above: a stop marks the run, then counts
            self.ensure(ranks, go_on, source=source)  # then it is known whether the ranks still have the model
            self.runs.check_ended()  # a death since the last step is known now
            known = self._known
            known.note_import(source)
            known.remarks, known.name, known.is_parked = remarks, name, False
            self.changed.set()
            if known.model == (source, plan):
                return ""
            known.model, known.conditions = None, SentConditions()
            reply, _ = self._request(ops.LOAD.header(source=source, plan=plan), {}, check)
            known.model = (source, plan)
            return reply.get(ops.BESIDE, "")

    def patch(self, key: str, build: Callable[[], tuple[Header, Tensors]], check: Check) -> None:
        """Makes sure that the loaded weights have these changes and no others. Does nothing if they already do.

        key: tells these changes from all others; empty for no changes. build: see `pack_patches`.
        Raises RequestRefused, after which the model is loaded again, and WorkerGroupError.
        """
        with self.turn(check):
            if self._known.patched != key:
                fields, tensors = build()
                self._request(ops.PATCH.header(key=key, **fields), tensors, check)

    def has_objects_of(self, sampling: str | None) -> bool:
        """Whether the model in use has the objects of this sampling's earlier requests. The first finds none. Later
        ones may find them gone, such as after another model took a turn."""
        return self._known.sampling == sampling

    def call(
        self,
        calls: Sequence[Arguments],
        check: Check,
        method: str = ops.FORWARD,
        on_reply: OnReply = lambda reply, state: None,
    ) -> list[list[torch.Tensor]]:
        """Calls a method of the loaded model. Returns the tensors of each call.

        Calls of the forward run at the same time, as far as the plan shares the batch. Their args are latents and
        timestep, which change each time. Tensors in kwargs that the group still has from an earlier request are not
        sent again. method: one of ENTRIES, or of SENT_METHODS in `comfyui/source.py`, which rank 0 runs. on_reply:
        called with the reply, see CALL and SAMPLE in `operations.py`, and the tensors of its STATE.
        Raises RequestRefused, also for values that cannot be sent, and WorkerGroupError.
        """
        tensors: Tensors = {}
        name = ops.FORWARD if method in ops.ENTRIES else method
        packed = [
            pack({"args": (*args,), "kwargs": {**kwargs}}, f"{name}.{index}", tensors)
            for index, (args, kwargs) in enumerate(calls)
        ]
        with self.turn(check):
            keys, new, dropped = self._known.conditions.diff(tensors)
            header = ops.CALL.header(method=method, calls=packed, conditions=keys, drop=dropped)
            reply, results = self._request(header, new, check)
            on_reply(reply, pop_state(results))
            found: list[list[torch.Tensor]] = [[] for _ in calls]
            for call, index in sorted(tuple(map(int, path.split(".")[1:])) for path in results):
                found[call].append(results[f"{PREDICTION}.{call}.{index}"])
            return found

    def sample(
        self,
        call: SamplerCall,
        tensors: Tensors,
        passes: Sequence[dict[str, Any]],
        check: Check,
        on_step: OnStep,
        on_reply: OnReply = lambda reply, state: None,
    ) -> torch.Tensor:
        """Runs a whole sampler call on the loaded model, and returns the denoised latents.

        tensors: noise, and the others of SAMPLER_TENSORS that the call has. passes: the forwards of each step, each the
        fields of the engine's `Pass`. on_step: called after every step. An exception in it or in `check` cancels the
        call at its next step. on_reply: as in `call`. Raises RequestRefused, also for values that cannot be sent, and
        WorkerGroupError."""
        given: Tensors = {}
        packed = [pack(each, f"passes.{index}", given) for index, each in enumerate(passes)]
        with self.turn(check):
            keys, new, dropped = self._known.conditions.diff(given)
            header = ops.SAMPLE.header(call=asdict(call), passes=packed, conditions=keys, drop=dropped)

            def noted(event: Header, denoised: torch.Tensor | None) -> None:
                self.runs.step(ops.SAMPLE.name, event["seconds"], event["communication"])
                self.runs.progress(event["step"] + 1, event["steps"])
                on_step(event, denoised)

            reply, results = self._request(header, {**tensors, **new}, check, noted)
            on_reply(reply, pop_state(results))
            return results["latents"]

    def run_vae(
        self, direction: str, source: Header, given: Tensors, weights: Callable[[], Tensors], ranks: int, check: Check
    ) -> Tensors:
        """Decodes latents or encodes pictures, see ParallelVAE. Raises what `load` raises.

        direction: decode or encode. source: a VaeSource as a JSON object. given: the tensor "input", and RANDOM if
        ComfyUI's random state goes along. The results are "result", and RANDOM likewise. weights: called if the ranks
        need the weights sent. ranks: how many to start, if none run.
        """
        with self.turn(check):
            session = self.session
            self.ensure(session.ranks if session else ranks, check)
            known = self._known
            known.note_import(source)
            known.is_parked = False
            header = ops.VAE.header(direction=direction, vae=source)
            reply, results = self._request(header, given, check)
            if ops.LACKING in reply:
                sent = {f"{ops.VAE_WEIGHTS}{name}": tensor for name, tensor in weights().items()}
                _, results = self._request(header, {**given, **sent}, check)
            return results

    def park(self, unload: bool = False, patience: float = 0.0) -> bool:
        """Frees the accelerators. Returns whether nothing is left on them.

        The weights move to the ranks' RAM. With `unload` they are dropped, and read again at the next use; CPU ranks
        have no accelerator to free, and always unload. If a request runs, waits up to `patience` seconds for its end,
        and then does nothing. Does nothing if no group runs. Raises nothing, because ComfyUI calls it outside of any
        node: errors are only logged.
        """
        try:
            with self.turn(seconds=patience) as has_come:
                session = self.session
                if not has_come or session is None or session.is_over:
                    return has_come
                if not self._is_idle():
                    return False
                if not unload and self.device != "cpu":
                    try:
                        self._request(ops.PARK.header(), {}, lambda: None)
                        session.known.conditions = SentConditions()
                        return True
                    except RequestRefused as refusal:
                        logging.warning("[ParallelDiT] the worker group unloads its model: %s", refusal)
                session.known = session.known.emptied(is_parked=not unload)
                self._request(ops.UNLOAD.header(), {}, lambda: None)
                return True
        except (WorkerGroupError, RequestRefused) as error:
            logging.error("[ParallelDiT] %s", error)
            return isinstance(error, WorkerGroupError)

    def trim(self) -> int:
        """Makes the ranks give back the memory that their allocators only cache.

        Returns how many bytes of ComfyUI's accelerator that freed; 0 while a request runs. Raises nothing, like `park`.
        """
        try:
            with self.turn(seconds=0.0) as has_come:
                if not has_come or not self._is_idle():
                    return 0
                reply, _ = self._request(ops.TRIM.header(), {}, lambda: None)
                return reply[ops.FREED] if self.is_on_comfyuis_card else 0
        except (WorkerGroupError, RequestRefused) as error:
            logging.error("[ParallelDiT] %s", error)
            return 0

    def used_device_bytes(self, status: Mapping[str, Any] | None = None) -> int:
        """Returns the bytes that rank 0 uses on ComfyUI's accelerator; 0 if it computes elsewhere. status: the ranks',
        if it is known."""
        ranks = (status or self.status()).get("memory", []) if self.is_on_comfyuis_card else []
        return ranks[0]["accelerator"] if ranks else 0

    def trace(self) -> bytes:
        """Returns what the ranks did lately, as a Chrome trace in JSON.

        Raises RequestRefused, also while a job runs, and WorkerGroupError.
        """
        with self.turn(seconds=0.0) as has_come:
            if not has_come:
                raise RequestRefused(
                    "The worker group is busy with a job.", "Ask for the trace again when it has ended."
                )
            _, results = self._request(ops.TRACE.header(), {}, lambda: None)
            return results["trace"].numpy().tobytes()

    def measure(self, ranks: int, dtype: str, check: Check) -> dict[str, Any]:
        """Measures the devices and links of exactly `ranks` ranks, and starts these if needed.

        Returns the input of `costs.machine.Machine.of`. Raises what `load` raises.
        """
        with self.turn(check):
            self.ensure(ranks, check, exactly=True)
            reply, _ = self._request(ops.MEASURE.header(dtype=dtype), {}, check)
            return reply[ops.MEASURED]

    @property
    def _known(self) -> KnownState:
        """What the session's ranks hold. Without a session, changes to it are lost."""
        session = self.session
        return session.known if session else KnownState()

    def revive(self, known: KnownState, check: Check) -> None:
        """Loads the model that the ranks held when they died. The next request brings its patches."""
        if known.model:
            self.load(*known.model, self.ranks, check, known.remarks, known.name)

    def _is_idle(self) -> bool:
        """Whether a group is waiting for a request. Called within a turn."""
        session = self.session
        if session is None or session.is_over:
            return False
        session.await_cancelled(lambda: None, CANCEL_SECONDS)
        return not session.operation  # set if a request still runs, or its callback calls this

    def _request(
        self, header: Header, tensors: Tensors, check: Check, on_step: OnStep | None = None
    ) -> tuple[Header, Tensors]:
        """Sends a request, and returns its reply and its tensors."""
        session = self.session
        self.runs.check_ended()  # after the line above: a stop marks the run, then removes the session
        if session is None:
            raise WorkerGroupError("The worker group is not running.", "Queue a prompt to start it.")
        self.changed.set()
        try:
            reply, results = session.request(header, tensors, check, on_step)
        except WorkerGroupError as error:
            died = error.explanation
            raise WorkerGroupError(*died.advised(self.advise(session))) from error
        finally:
            self.changed.set()
        if "error" in reply:
            refusal = {MEMORY: OutOfMemory, NO_ROOM: NoRoom}.get(reply.get("kind", ""), RequestRefused)
            raise refusal(**reply["error"])
        if "seconds" in reply:
            self.runs.step(header["op"], reply["seconds"], reply["communication"])
        return reply, results


def pop_state(results: Tensors) -> Tensors:
    """Takes the tensors of a reply's STATE out of its tensors."""
    return {name: results.pop(name) for name in list(results) if name.startswith(f"{ops.STATE}.")}
