"""How rank 0 follows a sampler call for ComfyUI: an event a step, and the end of it where ComfyUI has cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import Axis
from parallel_backend.groups.timeline import Timeline
from parallel_backend.sampling.denoiser import Watch

from ..wire.protocol import Header
from ..wire.tensors import Tensors

PREVIEW_SECONDS = 0.1  # between two estimates of the clean latents; ComfyUI shows no more

Emit = Callable[[Header, Tensors], None]


class JobWatch(Watch):
    """Of one sampler call, on every rank. Rank 0 decides at each step whether it runs, and tells the others.

    ranks: those that run it, with a group that is given up when the job breaks off, so that what is on its way then
    reaches no later job.
    cancelled, emit: asked and called on rank 0 alone. steps: how many the call has.
    """

    def __init__(
        self,
        ranks: Axis,
        timeline: Timeline,
        steps: int,
        previews: bool,
        cancelled: Callable[[], bool],
        emit: Emit,
    ) -> None:
        self.ranks = ranks
        self.timeline = timeline
        self.steps = steps
        self.previews = previews
        self.cancelled = cancelled
        self.emit = emit
        self.asked, self.answer = -1, True
        self.pending: list[dist.Work] = []
        self.last_step = self.last_preview = time.perf_counter()
        self.communicated = timeline.communicated()

    def proceed(self, step: int) -> bool:
        """Whether the step runs. Rank 0 tells each other rank, and none waits for any but rank 0: so none deadlocks."""
        if step == self.asked:
            return self.answer
        self.asked = step
        if dist.get_rank():
            answer = torch.zeros(1, dtype=torch.uint8)
            with self.timeline.communication("next step's go"):
                dist.recv(answer, 0, group=self.ranks.group)
            self.answer = bool(answer)
            return self.answer
        self.answer = not self.cancelled()
        for work in self.pending:
            work.wait()
        self.go = torch.tensor([self.answer], dtype=torch.uint8)  # kept until it has been sent
        sent = [dist.isend(self.go, rank, group=self.ranks.group) for rank in range(1, self.ranks.degree)]
        self.pending = [work for work in sent if work is not None]
        return self.answer

    def stepped(self, step: int, timestep: float, denoised: torch.Tensor | None) -> None:
        """Rank 0 sends the event, with a preview where the last one is old enough, and with the last step.

        seconds: since the last event, and how many of them went into communication; on a GPU as far as it has got.
        """
        if dist.get_rank():
            return
        now = time.perf_counter()
        event = {"event": "step", "step": step, "steps": self.steps, "timestep": timestep}
        event["seconds"], self.last_step = now - self.last_step, now
        communicated = self.timeline.communicated()
        event["communication"], self.communicated = communicated - self.communicated, communicated
        if self.skipped:
            event["skipped"], event["forwards"] = self.skipped
        tensors = {}
        is_last = step + 1 == self.steps
        if denoised is not None and (is_last or now - self.last_preview >= PREVIEW_SECONDS):
            tensors, self.last_preview = {"denoised": denoised}, now
        self.emit(event, tensors)

    def close(self) -> None:
        """Waits until the others have heard of every step; not after an error, which may keep them from hearing it."""
        for work in self.pending:
            work.wait()
