"""A worker group that serves many prompts, some of them cancelled, holds no more in the end than in the beginning."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

import psutil
import pytest
import torch

from demo.host import ComfyHost
from tests.support.host.faults import spaced
from tests.support.host.graphs import Job, cancel, latents, status

PROMPTS, SETTLED = 60, 20
PLANS = ({"cfg": 2, "ulysses": 1}, {"cfg": 1, "ulysses": 2})
LOOPED = "model's own"  # the scheduler of a Parallel Sampler, whose loop the ranks run
JOB = Job("shapes-dit", "red heart", width=64, height=64, seed=11, steps=8, scheduler=LOOPED)
CANCELLED = 0.2  # of the prompts
LONG = 400  # steps of a prompt that is to be cancelled


@dataclass(frozen=True)
class Holdings:
    """Of one process: its resident memory in bytes, open descriptors, threads."""

    memory: int
    descriptors: int
    threads: int


def holdings(host: ComfyHost) -> dict[str, Holdings]:
    """By process: the host and each rank."""
    processes = {"host": host.process.pid}
    processes |= {f"rank {rank}": pid for rank, pid in enumerate(status(host)["pids"])}
    held = {}
    for name, pid in processes.items():
        process = psutil.Process(pid)
        # What a process shares with others (a file's pages, libraries) comes and goes with them.
        held[name] = Holdings(
            process.memory_info().rss - process.memory_info().shared, process.num_fds(), process.num_threads()
        )
    return held


def soak(host: ComfyHost, prompts: int, seed: int = 0) -> Iterator[dict[str, Holdings]]:
    """Runs the prompts, and yields after each what the processes hold. Fails for a wrong result or history entry."""
    choose = random.Random(seed)
    references = [latents(host, spaced(JOB.under(plan)).prompt()) for plan in PLANS]
    for _ in range(prompts):
        index = choose.randrange(len(PLANS))
        job = spaced(JOB.under(PLANS[index]))
        if choose.random() < CANCELLED:
            long = replace(job, steps=LONG, scheduler=choose.choice((None, LOOPED)))
            cancel(host, long.prompt(), at=choose.randrange(1, 20))
        else:
            assert torch.equal(latents(host, job.prompt()), references[index])
        yield holdings(host)


def growth(course: list[dict[str, Holdings]], start: int) -> dict[str, dict[str, tuple[int, int]]]:
    """By process and kind: what was held around prompt `start`, and at the end; medians of a few prompts each."""

    def median(part: list[dict[str, Holdings]], name: str, kind: str) -> int:
        return statistics.median_high(getattr(held[name], kind) for held in part)

    few = max(3, (len(course) - start) // 10)
    early, late = course[start : start + few], course[-few:]
    return {
        name: {
            kind: (median(early, name, kind), median(late, name, kind)) for kind in ("memory", "descriptors", "threads")
        }
        for name in course[-1]
    }


@pytest.mark.slow
def test_many_prompts_and_cancels_leave_memory_descriptors_and_threads_flat(host: ComfyHost) -> None:
    course = list(soak(host, PROMPTS))
    for name, kinds in growth(course, SETTLED).items():
        for kind, (early, late) in kinds.items():
            # Two descriptors or threads may come and go; a leak of one a prompt, or a cancelled one, is far more.
            assert late <= max(early * 1.05, early + 2), f"{name}: {kind} went from {early} to {late}"
