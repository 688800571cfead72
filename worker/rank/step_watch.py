"""Follows a sampler call on rank 0 for ComfyUI: sends an event per step, and ends the call if ComfyUI cancels it."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from parallel_backend.sampling.denoiser import Watch

from ..wire.job_channel import RankChannel
from .job import Job
from .job_groups import CPU
from .state import FIGURES_SECONDS

PREVIEW_SECONDS = 0.1  # between two previews; ComfyUI shows no more


class JobWatch(Watch):
    """The watch of one sampler call, on every rank. Rank 0 decides at each step whether it runs, and tells the others.

    ranks: those that run the call. Their group is dropped if the job breaks off, so that none of its messages reaches a
    later job.
    steps: of the call. channel: for events; None on ranks other than 0.
    """

    def __init__(self, job: Job, steps: int, previews: bool, channel: RankChannel | None) -> None:
        self.job = job
        self.ranks = job.groups.world_axis(CPU, job.ranks)
        self.steps = steps
        self.previews = previews
        self.channel = channel
        self.asked, self.answer = -1, True
        self.pending: list[dist.Work] = []
        self.last_step = self.last_preview = time.perf_counter()
        self.communicated = job.groups.timeline.communicated()

    def proceed(self, step: int) -> bool:
        """Whether the step runs. Rank 0 tells each other rank. Ranks wait for rank 0 only, so there is no deadlock."""
        if step == self.asked:
            return self.answer
        self.asked = step
        self.job.state.publish(FIGURES_SECONDS)
        if dist.get_rank():
            answer = torch.zeros(1, dtype=torch.uint8)
            with self.job.groups.timeline.communication("next step's go"):
                dist.recv(answer, 0, group=self.ranks.group)
            self.answer = bool(answer)
            return self.answer
        self.answer = not self.job.is_cancelled
        for work in self.pending:
            work.wait()
        self.go = torch.tensor([self.answer], dtype=torch.uint8)  # kept until it is sent
        sent = [dist.isend(self.go, rank, group=self.ranks.group) for rank in range(1, self.ranks.degree)]
        self.pending = [work for work in sent if work is not None]
        return self.answer

    def stepped(self, step: int, timestep: float, denoised: torch.Tensor | None) -> None:
        """Sends the event from rank 0, with a preview if the last one is old enough or this is the last step. seconds:
        since the last event, and how many of them were communication; on a GPU, as far as it has computed."""
        if self.channel is None:
            return
        now = time.perf_counter()
        self.job.step = (step + 1, self.steps)
        event = {"id": self.job.id, "event": "step", "step": step, "steps": self.steps, "timestep": timestep}
        event["seconds"], self.last_step = now - self.last_step, now
        communicated = self.job.groups.timeline.communicated()
        event["communication"], self.communicated = communicated - self.communicated, communicated
        tensors = {}
        is_last = step + 1 == self.steps
        if denoised is not None and (is_last or now - self.last_preview >= PREVIEW_SECONDS):
            tensors, self.last_preview = {"denoised": denoised}, now
        self.channel.send(event, tensors)

    def close(self) -> None:
        """Waits until every decision has reached the other ranks. Not called after an error, because they may then
        receive none."""
        for work in self.pending:
            work.wait()
