"""A worker group that serves many prompts, some of them cancelled, holds no more in the end than in the beginning."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
import torch

from demo.host import ComfyHost
from tests.support.host.faults import spaced
from tests.support.host.graphs import Job, cancel, latents, ranks

PROMPTS, SETTLED, FEW = 60, 20, 4
PLANS = ({"cfg": 2, "ulysses": 1}, {"cfg": 1, "ulysses": 2})
LOOPED = "model's own"  # the scheduler of a Parallel Sampler, whose loop the ranks run
JOB = Job("shapes-dit", "red heart", width=64, height=64, seed=11, steps=8, scheduler=LOOPED)
CANCELLED = 0.2  # of the prompts
LONG = 400  # steps of a prompt that is to be cancelled


Holdings = tuple[int, int, int]  # of a process, by KINDS
KINDS = ("bytes of memory", "open descriptors", "threads")


def holdings(host: ComfyHost) -> dict[str, Holdings]:
    pids = {"host": host.process.pid} | {f"rank {rank}": pid for rank, pid in enumerate(ranks(host))}
    held = {}
    for name, pid in pids.items():
        process = psutil.Process(pid)
        memory = process.memory_info()
        # What a process shares with others (a file's pages, libraries) comes and goes with them.
        held[name] = memory.rss - memory.shared, process.num_fds(), process.num_threads()
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


def medians(course: list[dict[str, Holdings]], name: str) -> list[int]:
    """What a process held around these prompts, by KINDS."""
    return [statistics.median_high(values) for values in zip(*(held[name] for held in course), strict=True)]


@pytest.mark.slow
def test_many_prompts_and_cancels_leave_memory_descriptors_and_threads_flat(host: ComfyHost) -> None:
    course = list(soak(host, PROMPTS))
    for name in course[-1]:
        early, late = medians(course[SETTLED : SETTLED + FEW], name), medians(course[-FEW:], name)
        for kind, before, after in zip(KINDS, early, late, strict=True):
            # Two descriptors or threads may come and go; a leak of one a prompt, or a cancelled one, is far more.
            assert after <= max(before * 1.05, before + 2), f"{name}: {kind} went from {before} to {after}"
