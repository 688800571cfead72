"""Executes requests on one rank, and counts them. The operations themselves are in `operations`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.device import name_of
from parallel_backend.groups.collectives import gather_json
from parallel_backend.plan import ParallelPlan

from ..launch.torchrun import COMFYUI_THREADS, THREADS, count_threads
from ..wire.job_channel import RankChannel
from ..wire.operations import CALL, OPERATIONS
from ..wire.protocol import FAILED, IN_BLOCKS, MEMORY, NEVER, ONCE, Header
from ..wire.tensors import Tensors
from .agreement import DONE, AgreementGroups, Outcome
from .channels.heartbeat import Heartbeat
from .job import Job
from .job_groups import JobGroups
from .operations import Operations
from .request_checks import check_request
from .state import RankState


@dataclass(eq=False)
class Executor:
    """Executes one request at a time. Another thread may call `answer`.

    control: the groups by which ranks agree. groups: for all other communication. channel: to ComfyUI, for events; None
    on ranks other than 0. job: the running one. processes: every rank's process and device: pid, device number on its
    machine (None for a CPU), name, and outside: the bytes of the card that were not the rank's own as it started, see
    `outside_bytes`.
    """

    state: RankState
    control: AgreementGroups
    groups: JobGroups
    heartbeat: Heartbeat
    channel: RankChannel | None
    job: Job | None = None

    def __post_init__(self) -> None:
        operations = Operations(self.state, self.channel)
        self.handlers = {name: getattr(operations, name) for name in OPERATIONS}  # raises if one is missing
        self.counts = dict.fromkeys(self.handlers, 0)
        device, outside = self.state.device, self.state.outside
        own = {"pid": os.getpid(), "index": device.index, "name": name_of(device), "outside": outside}
        self.processes: list[dict[str, Any]] = gather_json(own, self.control.groups[dist.get_world_size()])

    def execute(self, header: Header, tensors: Tensors) -> tuple[Header, Tensors | None]:
        """Runs one request. Returns the reply's fields, and rank 0's tensors. All ranks agree on how it ended. Raises
        errors that the group cannot survive."""
        job = self.job = Job(header, tensors, self.state, self.control, self.groups, self.heartbeat)
        self.groups.job = job.id
        name = job.operation.name
        with self.groups.timeline.request(name):
            results, outcome = job.attempt(lambda: self.run(job, tensors))
            if job.ranks < dist.get_world_size():  # those outside of the plan learn it, too
                outcome = self.control.agree(outcome, dist.get_world_size())
        is_done = outcome.kind == DONE
        if is_done:
            self.groups.check()
            self.counts[name] += 1
        else:
            self.undo(job, outcome)
        self.state.publish()  # before the reply, because ComfyUI then asks what the request has freed
        self.job, self.heartbeat.ended = None, job.id
        reply = {**outcome.reply(), **self.state.reply()}
        return ({**reply, **self.timing(job), **job.told}, results) if is_done else (reply, None)

    def run(self, job: Job, tensors: Tensors) -> Tensors | None:
        """Runs the request if this rank takes part in it. Raises RequestError for an impossible request."""
        check_request(job.header, tensors)
        if job.operation.is_of_plan and not job.leave_to_plan():
            return None
        use_threads(job.ranks, dist.get_world_size())
        return self.handlers[job.operation.name](job, tensors)

    def undo(self, job: Job, outcome: Outcome) -> None:
        """Drops the model if a job that ended early may have left it half changed. Drops everything if its
        communication was cut."""
        if outcome.kind == MEMORY:
            self.state.crowded |= {each.mesh.plan.world_size for each in self.state.aside}
        if outcome.kind in (FAILED, MEMORY):
            self.state.drop_all()
            self.groups.cut(job.id)
            self.groups.close()
        elif job.operation.drops_model:
            self.state.drop_model()

    def timing(self, job: Job) -> Header:
        """Returns the seconds of a single step, and those of its communication. In loop mode, events report them."""
        steps = self.groups.timeline.steps
        if not (job.operation is CALL and steps):
            return {}
        lengths, waits = zip(*steps, strict=True)
        return {"seconds": sum(lengths) / 1e9, "communication": sum(waits) / 1e9}

    def answer(self, question: Header) -> Header:
        """Answers ComfyUI from another thread while a job runs. It is an error if the question is unknown, or the
        memory full: a job may use it up, and goes on without it."""
        try:
            match question:
                case {"op": "status"}:
                    return self.status()
                case {"op": "cancel", "job": int(job)}:
                    self.heartbeat.cancel(job)
                    return {}
        except MemoryError:
            return {"error": f"Rank 0 has no memory for {question['op']!r}."}
        return {"error": f"Rank 0 knows no question {question!r:.100}; restart ComfyUI."}

    def status(self) -> dict[str, Any]:
        """Returns what ComfyUI shows of the ranks."""
        job, model = self.job, self.state.model
        return {
            "state": "busy" if job else "parked" if self.state.is_parked else "ready",
            "operation": job and job.operation.name,
            "step": job and job.step,
            "device": self.state.device.type,
            "pids": [each["pid"] for each in self.processes],
            "devices": [{name: each[name] for name in ("index", "name", "outside")} for each in self.processes],
            "counts": dict(self.counts),
            "exchanges": exchanges_of(model and model.mesh.plan),
            **self.heartbeat.status(),
            **self.state.loaded,
        }


def exchanges_of(plan: ParallelPlan | None) -> str:
    """Returns when the plan's ranks exchange something in a forward: never, once, or in its blocks."""
    if plan is None or plan.world_size == 1:
        return NEVER
    return IN_BLOCKS if plan.token_ways * plan.pipefusion > 1 else ONCE


def use_threads(ranks: int, world: int) -> None:
    """Limits this rank to its share of the machine's threads. world: the number of ranks."""
    threads = int(os.environ[THREADS]) if ranks == world else count_threads(ranks, os.environ[COMFYUI_THREADS])
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
