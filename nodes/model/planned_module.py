"""The model as the ranks have it: under which plan its calls run and why, how long they take, and its memory there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...parallel_backend.axes import BATCH_AXES, STAGE_AXES
from ...parallel_backend.costs.auto import PlanOfRun, list_model_plans
from ...parallel_backend.costs.forward import Work
from ...parallel_backend.costs.memory import call_bytes
from ...parallel_backend.plan import HOST, ParallelPlan
from ...worker.comfyui.call_keys import MODEL_CHANGES, OPTIONS
from ...worker.comfyui.source import HostSource
from ...worker.errors import Explanation
from ...worker.host.client import WorkerGroup
from ..costs.machine import measure
from ..costs.plans import ONE_DEVICE, ModelCosts
from ..inside.sharing import join, limit_work, list_unshared
from ..plan_words import format_seconds, join_remarks
from ..workers.room import expect_weights, room_for_weights
from .sampling import check_interrupt, warn


@dataclass(eq=False)
class PlannedModule:
    """A module whose calls run under the user's plan or an automatic one.

    source: of the model.
    decided: decides the plan by the work of a call.
    name: of the model, as the user chose it.
    forced: the plan in its place, while a node's functions force another.
    working: bytes in addition to the weights on a rank, for the last sampling that ComfyUI freed memory for."""

    group: WorkerGroup
    module: torch.nn.Module
    source: HostSource
    costs: ModelCosts
    decided: PlanOfRun
    name: str
    forced: ParallelPlan | None = None
    last_work: Work | None = None  # of the last request
    working: float = 0.0
    makes_room: bool = False
    networks: int = 0

    @property
    def plan(self) -> ParallelPlan:
        return self.forced or self.decided.plan

    def begin_sampling(self) -> ParallelPlan | None:
        """Begins a sampling. Returns its plan; None if the plan depends on the work."""
        self.decided.begin()
        self.forced = None
        return None if self.decided.is_undecided else self.plan

    def decide_plan(self, work: Work, options: Sequence[Mapping[str, Any]]) -> None:
        """Decides a plan that depends on the work. Replaces a user's plan that shares more than the nodes' functions
        allow. The ranks keep the weights. options: of the calls."""
        work = limit_work(work, options)
        if work != self.last_work:
            self.learn_step()
        self.follow_work(work)
        if reasons := list(list_unshared(options, self.plan, work)):
            self.share_less(work, reasons)
        self.report_prediction(work)

    def share_less(self, work: Work, reasons: Sequence[str]) -> None:
        """Replaces the plan by one that the nodes' functions allow, for the same number of ranks."""
        asked = self.decided.plan
        found = list_model_plans(self.plan.world_size, self.costs.module, work)[0]
        weights = asked.weights if asked.weights == HOST else found.weights
        self.forced = replace(found, attention=asked.attention, weights=weights)
        said = f"This sampling runs under {self.plan}, not under {asked}, because of {join(reasons)}."
        warn(said)
        self.group.runs.note(reason=said, is_stock=False)
        self.group.runs.planned(self.plan)

    def follow_work(self, work: Work) -> None:
        """Decides the plan, or changes it if this work requires another."""
        if not self.decided.follow(work):
            return
        self.forced, choice = None, self.decided.choice
        logging.info("[ParallelDiT] %s: %s. %s", self.source.model_class, self.plan, join_remarks(choice.note))
        self.group.runs.planned(self.plan)
        if tried := choice.tried:
            self.group.runs.note(reason=f"auto tries {self.plan}, {tried[0]} of {tried[1]}.", is_stock=False)

    def report_prediction(self, work: Work) -> None:
        """Reports the predicted time of a step, also on one device, once for each plan and size."""
        run = self.group.runs.current
        if work == self.last_work and (run is None or (run.predicted, run.alone) != (None, None)):
            return
        self.last_work = work
        if work.forward and self.plan.world_size > 1:
            alone, is_measured = self.costs.predict(work, ONE_DEVICE), self.costs.is_measured
            self.group.runs.note(alone=alone.seconds, is_alone_run=alone.has_run, is_measured=is_measured)
        if work.forward:
            seconds, is_measured = self.costs.predict(work, self.plan).seconds, self.costs.is_measured
            self.group.runs.note(predicted=seconds, is_measured=is_measured, plan_steps=[])

    def count_work(self, work: Work, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Work:
        """Returns the work with the cost of one of its parts, counted from one of its calls. If the plan is not decided
        yet, the ranks measure their speed first. Counting would run nodes' functions in the module. If
        there are any, the cost stays unknown."""
        if MODEL_CHANGES in kwargs[OPTIONS]:
            return work
        if self.decided.is_undecided:
            measure(self.group, self.costs.dtype, check_interrupt)
        work = replace(work, forward=self.costs.count_call(args, kwargs))
        self.costs.remember(work)
        return work

    def explain_stock(self, why: str, down: Explanation | None) -> str:
        """Says that ComfyUI's own model runs in place of the ranks. It says what a step takes if the last request was
        predicted. why: what the ranks cannot run. down: why there are no ranks."""
        why = down.brief if down else f"The worker processes cannot run {why}. Without it, they can."
        said = f"{self.name} runs as stock, on ComfyUI's own device alone. {why}"
        work, plan = self.last_work, self.decided.plan
        if work is None or plan.world_size == 1 or not work.forward:
            return said
        alone, shared = (format_seconds(self.costs.predict(work, each).seconds) for each in (ONE_DEVICE, plan))
        return f"{said} A step takes about {alone} on one device and {shared} under {plan}."

    def learn_step(self) -> None:
        """Keeps what a usual step of the run took. Called after its last step of this work: it takes milliseconds."""
        run, work = self.group.runs.current, self.last_work
        usual = run and run.predicted and run.usual
        if work and usual and work.forward:
            self.costs.learn(work, self.plan, usual)

    def shares_calls(self) -> bool:
        """Whether the ranks run the calls of one request at the same time, or in one pipeline. A plan that is not
        decided yet counts as yes."""
        return self.decided.is_undecided or self.plan.ways((*BATCH_AXES, *STAGE_AXES)) > 1

    def weight_bytes(self, status: Mapping[str, Any]) -> int:
        """Returns the bytes of weights that rank 0 keeps on ComfyUI's device, parked ones included. status: the ranks'.

        They report them. Before that, they are predicted for a card on which ComfyUI has freed memory.
        """
        if self.is_loaded and (reported := status.get("weights")):
            plan = replace(self.plan, weights=reported["kind"], weight_blocks=reported.get("blocks", 0))
        else:
            plan = expect_weights(self.plan, self.costs.sizes, room_for_weights(self.plan, self.working))
        return max(1, self.costs.sizes.count_resident_bytes(plan)[0])

    @property
    def is_loaded(self) -> bool:
        """Whether the worker group holds this model under this plan; parked counts."""
        return self.group.loaded == (self.source.to_json(), self.plan.to_json())

    def loaded_bytes(self) -> int:
        """Returns the bytes that the worker group keeps on ComfyUI's device, if it holds this model."""
        return self.group.used_device_bytes() if self.is_loaded else 0

    def needed_bytes(self) -> int:
        """Returns the bytes that the worker group will keep on ComfyUI's device for this model, at least 1. If the
        group holds others, which will be released, it returns only the bytes beyond theirs."""
        if not self.group.is_on_comfyuis_card:
            return 1
        status = self.group.status()
        kept, own = self.group.used_device_bytes(status), self.weight_bytes(status)
        if self.is_loaded:
            return max(own, kept)
        return own if self.will_join(own, status) else max(1, own - kept)

    def will_join(self, own: int, status: Mapping[str, Any]) -> bool:
        """Whether the ranks will load this model, of so many bytes on rank 0, beside those that they hold."""
        room = room_for_weights(self.plan, self.working)
        if room is None or "memory" not in status or self.source.file in status.get("aside", ()):
            return False
        held = status["memory"][0]["resident_weights"]
        return 0 < held <= room.device - own

    @contextlib.contextmanager
    def make_room(self, networks: int) -> Iterator[None]:
        """While entered, ComfyUI asks how much memory to free before a sampling. Otherwise it asks if rows fit into a
        batch. networks: the bytes of the networks that the ranks load for nodes."""
        self.makes_room, self.working, self.networks = True, 0.0, networks
        try:
            yield
        finally:
            self.makes_room = False

    def working_bytes(self, estimate: float, latents: Sequence[int]) -> float:
        """Returns the bytes that rank 0 will take of ComfyUI's device for a call with latents of this shape (B, C, …),
        beyond the weights and its cached memory.

        It is 0 if ComfyUI asks whether the rows fit into one batch, because the ranks share out the batch again.
        estimate: the bytes of the whole call.
        """
        if not self.makes_room or not self.group.is_on_comfyuis_card:
            return 0
        dtype, module = self.costs.torch_dtype, self.costs.module
        working = call_bytes(estimate, latents, module, self.plan, self.costs.sizes, dtype) + self.networks
        self.working = max(self.working, working)
        if not self.is_loaded:
            return working
        status = self.group.status()
        ready = self.group.used_device_bytes(status) - self.weight_bytes(status)
        return max(0, working - max(0, ready))

    def trim(self) -> int:
        """Makes the worker group free its cached memory on its accelerators, if it holds this model. Returns how many
        bytes of ComfyUI's device that freed."""
        return self.group.trim() if self.is_loaded and self.group.settings.on_free != "keep" else 0

    def free(self) -> None:
        """Makes the worker group free its accelerators as the settings say, if it holds this model."""
        if self.is_loaded and self.group.settings.on_free != "keep":
            self.group.park(unload=self.group.settings.on_free == "unload")
