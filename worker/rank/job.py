"""Runs a request on a rank, and ends it without a deadlock if something fails on one rank alone."""

from __future__ import annotations

import gc
import logging
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from parallel_backend.errors import GroupError, NoRoomError, RequestError, is_out_of_memory, lack_of_memory, reasons
from parallel_backend.groups.mesh import Axis
from parallel_backend.models.checks import count_tokens
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.placement import AllRanks

from ..comfyui.source import HostSource
from ..errors import Explained, Explanation
from ..launch.torchrun import machine_prefix
from ..wire.operations import LOAD, Operation, operation_of
from ..wire.protocol import FAILED, MEMORY, NO_ROOM, Header
from ..wire.tensors import Tensors
from .agreement import BROKEN, CANCELLED, DONE, REFUSED, AgreementGroups, JobEnded, Outcome
from .channels.heartbeat import CUT_DELAY_SECONDS, Heartbeat
from .job_groups import JobGroups
from .memory.device_memory import DeviceMemory, asked
from .memory.out_of_memory import explain_lack
from .model.host_model import HostModel
from .state import FIGURES_SECONDS, RankState

Result = TypeVar("Result")


MAX_TRACEBACK = 8000  # characters, the last of them
CHECK_INPUTS = "Check that the latent, the conditioning and what else reaches the model are made for it."


class Cancelled(Exception):
    """ComfyUI cancelled the request."""


class ModelFailed(Explained, RuntimeError):
    """The model's own code raised an error, maybe on this rank alone. The rank itself is fine."""

    def __init__(self, error: Exception) -> None:
        if isinstance(error, RequestError):
            super().__init__(*error.explanation)
            return
        super().__init__(f"The model failed: {type(error).__name__}: {error}", CHECK_INPUTS, tell_traceback(error))


@dataclass(eq=False)
class Job(AllRanks):
    """One request, from its header to the outcome that all ranks agree on. control: the groups by which ranks agree.
    groups: for all other communication. step: of a sampler call, and the number of its steps. told: fields of the
    reply, beside its tensors; rank 0's are sent."""

    header: Header
    tensors: InitVar[Tensors]
    state: RankState
    control: AgreementGroups
    groups: JobGroups
    heartbeat: Heartbeat
    step: tuple[int, int] | None = None
    told: Header = field(default_factory=dict)

    def __post_init__(self, tensors: Tensors) -> None:
        self.operation, self.links = operation_of(self.header), self.state.links
        latents = tensors.get(self.operation.latents)
        self.latents = None if latents is None else latents.shape  # the job frees them early
        self.ranks = dist.get_world_size()  # the number of ranks that run it; these are the first ones
        self.id = self.header["id"] if type(self.header.get("id")) is int else 0

    @property
    def control_group(self) -> dist.ProcessGroup:
        """The control group of the ranks that run the job. This rank is one of them."""
        return self.control.groups[self.ranks]

    def replicas(self, plan: ParallelPlan) -> Axis:
        return self.groups.replicas(plan)

    def leave_to_plan(self) -> bool:
        """Leaves the rest of the job to the plan's ranks. Returns whether this rank is one of them. All ranks call
        it."""
        self.ranks = self.control.plan_ranks
        return dist.get_rank() < self.ranks

    @property
    def is_cancelled(self) -> bool:
        """Whether ComfyUI has cancelled the job. Ranks do not learn it at the same moment."""
        return self.heartbeat.cancelled == self.id

    def check(self) -> None:
        """Publishes that the job goes on, and the memory's figures. Raises Cancelled once ComfyUI has cancelled it."""
        self.groups.timeline.moves += 1
        self.state.publish(FIGURES_SECONDS)
        if self.is_cancelled:
            raise Cancelled

    def attempt(self, action: Callable[[], Result]) -> tuple[Result | None, Outcome]:
        """Runs an action that may fail on one rank alone. Returns this rank's result, and how it ended for all ranks.
        Raises errors that the group cannot survive."""
        result, own = None, Outcome()
        try:
            result = action()
        except JobEnded as ended:
            return None, ended.outcome
        except Exception as error:
            own = self._judge(error)
        if dist.get_rank() >= self.ranks:  # it does not run the job
            return result, own
        return result, self.control.agree(own, self.ranks)

    def all_or_none(self, action: Callable[[], Result], has_collectives: bool = False) -> Result:
        """Runs an action that may fail on one rank alone, before collectives follow. Raises JobEnded on all ranks if it
        fails on any."""
        result, outcome = self.attempt(action if has_collectives else lambda: self.without_collectives(action))
        if outcome.kind != DONE:
            raise JobEnded(outcome)
        return cast("Result", result)

    def without_collectives(self, action: Callable[[], Result]) -> Result:
        """Runs an action without collectives. Nobody waits for this rank meanwhile, so any failure can be refused."""
        try:
            return action()
        except (RequestError, Cancelled):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            logging.exception("%s failed", self.operation.name)
            advice = "If it happens again, report it with the details."
            raise RequestError(f"{type(error).__name__}: {error}", advice, tell_traceback(error)) from error

    def _judge(self, error: Exception) -> Outcome:
        """Returns how the job ended on this rank. Raises the error again if the group cannot survive it."""
        if isinstance(error, Cancelled):
            return Outcome(CANCELLED)
        if isinstance(error, RequestError):
            kind = NO_ROOM if isinstance(error, NoRoomError) else REFUSED
            return Outcome(kind, error.explanation.because(machine_prefix()))
        if isinstance(error, GroupError) or not self.groups.can_be_cut:
            raise error
        lack = lack_of_memory(error)
        if lack is None:
            return self._judge_failure(error)
        full = DeviceMemory.now(self.state.device)
        self.heartbeat.beat(broken=self.id)
        self._cut()
        logging.error("out of memory", exc_info=error)
        for reason in reasons(error):
            traceback.clear_frames(reason.__traceback__)  # its stack frames refer to the job's tensors
        gc.collect()
        return Outcome(MEMORY, self._report(lack, full))

    def _judge_failure(self, error: Exception) -> Outcome:
        """Judges errors other than a lack of memory, like `_judge`."""
        if not self.heartbeat.is_broken(self.id):
            if not isinstance(error, ModelFailed):
                raise error
            said = error.explanation.because(machine_prefix())
            if self.ranks == 1:
                return Outcome(REFUSED, said)
            self.heartbeat.beat(broken=self.id)  # others may wait for this rank in a collective
            self._cut()
            return Outcome(FAILED, said)
        self._cut()  # another rank broke the job off, so its data is missing; others may wait for this rank
        return Outcome(BROKEN)

    def _report(self, lack: BaseException, full: DeviceMemory) -> Explanation:
        """Returns a report on a lack of memory. Raises nothing, because the group goes on. full: the free memory at the
        error."""
        rank, device = dist.get_rank(), self.state.device
        try:
            model = describe_model(self.operation, self.header, self.latents, self.state.model)
            others = sum(each.resident_bytes for each in self.state.aside)
            empty = DeviceMemory.now(device)
            return explain_lack(rank, self.operation, asked(lack), full, empty, **model, others=others)
        except Exception:
            logging.exception("the report of the lack of memory is incomplete")
            return Explanation(f"Rank {rank} ran out of memory while it was {self.operation.doing}.")

    def _cut(self) -> None:
        """Cuts the job's communication, after a wait in which transfers that were under way arrive."""
        time.sleep(CUT_DELAY_SECONDS)
        self.groups.cut(self.id)


def tell_traceback(error: Exception) -> str:
    """Returns the details of an error that the code did not expect."""
    return f"Rank {dist.get_rank()}:\n{''.join(traceback.format_exception(error))[-MAX_TRACEBACK:].rstrip()}"


def describe_model(
    operation: Operation, header: Header, latents: torch.Size | None, model: HostModel | None
) -> dict[str, Any]:
    """Returns what `explain_lack` says of a request's model: weights and tokens."""
    loads = operation is LOAD
    if operation.without_model or model is None:
        files = HostSource.from_json(header["source"]).files if loads else ()
        return {"weights": sum(map(os.path.getsize, files))}  # a stage may keep less
    return {
        "weights": max(model.sizes.count_resident_bytes(model.mesh.plan)) if loads else model.resident_bytes,
        "tokens": count_tokens(model.parallel.model, latents) if latents else 0,
    }
