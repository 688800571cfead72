"""Many prompts in a row through one ComfyUI, some of them cancelled; what its processes hold meanwhile."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

import psutil
import torch

from demo.host import ComfyHost
from tests.support.host.faults import spaced
from tests.support.host.graphs import Job, latents, status

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
            cancel(host, replace(job, steps=LONG, scheduler=choose.choice((None, LOOPED))), at=choose.randrange(1, 20))
        else:
            assert torch.equal(latents(host, job.prompt()), references[index])
        yield holdings(host)


def cancel(host: ComfyHost, job: Job, at: int) -> None:
    """Interrupts a prompt at a step, or after it: ComfyUI does not tell of every one."""
    prompt_id = host.queue(job.prompt())
    asked = []

    def interrupt(event: dict) -> None:
        if event["type"] == "progress" and event["data"]["value"] >= at and not asked:
            asked.append(event)
            host.interrupt(prompt_id)

    entry = host.wait(prompt_id, on_event=interrupt)
    assert entry["status"]["completed"] is False
    assert [kind for kind, _ in entry["status"]["messages"]][-1] == "execution_interrupted"


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
