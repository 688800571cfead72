"""Faults that are really done to a ComfyUI and its worker group, and what came of each."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from demo.host import ComfyHost, HostError, PromptError
from tests.conftest import PIPELINES, write_pipeline
from tests.support.group import direct_group
from tests.support.host.graphs import TINY_MODELS, Job, alive, latents, post, ranks, status, worker_processes
from worker.settings import FILE_NAME

SILENCE_SECONDS = 4  # a rank that waits for a busy machine is to be silent for less
PYTHON = "worker-python"  # the workers' interpreter, in the host's base folder
PATIENCE = 90.0
SECONDS_TO_GO = 20.0  # for the processes of a ComfyUI that has ended
GOOD = Job("tiny-dit", "3", seed=77, plan={"cfg": 2})  # `auto` may choose another plan after a restart: other bits
# ComfyUI runs a prompt again only if an input differs; the spaces before a label make no other label of it.
_spaces = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """said: the node's error; empty where the fault met an idle group, which no node saw. to_error: seconds from the
    fault. left: processes of before the fault that are still there.
    """

    said: str
    to_error: float
    left: list[psutil.Process]


def spaced(job: Job) -> Job:
    """The same job as a prompt that was never run."""
    return replace(job, positive=" " * next(_spaces) + job.positive)


def good(host: ComfyHost, as_stock: bool = False) -> torch.Tensor:
    """The latents of a prompt that is always the same, and is always run."""
    return latents(host, spaced(GOOD).prompt(), as_stock, timeout=PATIENCE)


def long(scheduler: str | None) -> dict[str, Any]:
    """scheduler: of a Parallel Sampler, whose loop the ranks run."""
    return spaced(replace(GOOD, steps=5000, scheduler=scheduler)).prompt()


def wait_until(true: Callable[[], Any], seconds: float = PATIENCE) -> None:
    assert direct_group.wait_until(true, seconds), "nothing happened"


def suffer(host: ComfyHost, moment: str, fault: Callable[[ComfyHost], None]) -> Outcome:
    """Brings the host to that moment, does the fault to it, and waits for the next good latents.

    moment: idle, loading, or in a step of step mode or of loop mode. Fails unless the latents are the same.
    """
    reference = good(host)
    seen: list[float] = []

    def strike() -> None:
        seen.append(time.monotonic())
        fault(host)

    before = worker_processes(host)
    said, ended = "", 0.0
    if moment == "idle":
        last = status(host)["last_death"]  # it names a process, so no two are alike; their count forgets old ones
        strike()
        wait_until(lambda: status(host)["last_death"] != last)
    else:
        if moment == "loading":
            prompt_id = queue_until_it_loads(host)
        else:
            prompt_id = host.queue(long(None if moment == "step mode" else "Euler"))

        def follow(event: dict) -> None:
            if event["type"] == "progress" and event["data"]["value"] >= 3 and not seen:
                strike()

        if moment == "loading":
            before = worker_processes(host)
            strike()
        try:
            host.wait(prompt_id, on_event=follow, timeout=PATIENCE)
        except PromptError as error:
            said, ended = error.message, time.monotonic() - seen[0]
    torch.testing.assert_close(good(host), reference, rtol=0, atol=0)  # which says by how much they differ
    return Outcome(said, ended, [process for process in before if alive(process)])


def queue_until_it_loads(host: ComfyHost) -> str:
    """Queues a long prompt on new ranks and returns its id while they load its model. A load that was over before it
    was seen is done again."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        processes = worker_processes(host)
        post(host, "/paralleldit/stop")
        wait_until(lambda processes=processes: not any(map(alive, processes)))
        prompt_id = host.queue(long("Euler"))
        wait_until(lambda: status(host).get("operation"))
        if status(host).get("operation") == "load":
            return prompt_id
        host.interrupt(prompt_id)
        host.wait(prompt_id, timeout=PATIENCE)
    raise AssertionError("no load was seen")


def send(number: signal.Signals, rank: int) -> Callable[[ComfyHost], None]:
    """A signal to a rank."""
    return lambda host: os.kill(ranks(host)[rank], number)


def kill_in_a_collective(rank: int) -> Callable[[ComfyHost], None]:
    """Kills a rank that waits in a collective for another, which is stopped."""

    def fault(host: ComfyHost) -> None:
        found = ranks(host)
        os.kill(found[1 - rank], signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(found[rank], signal.SIGKILL)

    return fault


def kill_torchrun(host: ComfyHost) -> None:
    (agent,) = psutil.Process(host.process.pid).children()
    agent.kill()


def frail_host(comfyui: Path, base: Path) -> ComfyHost:
    """A ComfyUI with one tiny model, whose groups are soon taken for dead, and started again as often as they die."""
    write_pipeline(base / "models" / "diffusers" / GOOD.model, *PIPELINES[GOOD.model])
    (base / PYTHON).write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (base / PYTHON).chmod(0o755)
    settings = {"restarts": 1000, "silence_seconds": SILENCE_SECONDS, "python": str(base / PYTHON)}
    (base / "user").mkdir()
    (base / "user" / FILE_NAME).write_text(json.dumps(settings))
    return ComfyHost(comfyui, base, env=TINY_MODELS)


def kill_while_it_samples(host: ComfyHost) -> None:
    """Fails unless the processes of the ComfyUI end soon, too."""
    good(host)
    processes = worker_processes(host)
    assert {*ranks(host)} < {process.pid for process in processes}, "the ranks and their torchrun agent"

    def kill(event: dict) -> None:
        if event["type"] == "progress":
            host.process.kill()

    with pytest.raises(HostError):
        host.wait(host.queue(long(None)), on_event=kill, timeout=PATIENCE)
    host.process.wait(SECONDS_TO_GO)
    wait_until(lambda: not any(map(alive, processes)), SECONDS_TO_GO)


@dataclass(frozen=True)
class Case:
    """moment: see `suffer`. says: regular expressions that the node's error matches; none where no node sees it."""

    moment: str
    fault: Callable[[ComfyHost], None]
    says: tuple[str, ...] = ()
    seconds_to_error: float = 20.0  # generous


KILLED = "was killed by SIGKILL"
SILENT = r"(has not answered|no sign of life) for"
SILENCE = SILENCE_SECONDS + 20.0

CASES = {
    "kill torchrun, idle": Case("idle", kill_torchrun),
    "kill torchrun, in a step": Case("loop mode", kill_torchrun, ("torchrun .* was killed by SIGKILL",)),
}
for _rank in (0, 1):
    _kill, _stop, _who = send(signal.SIGKILL, _rank), send(signal.SIGSTOP, _rank), f"Rank {_rank} "
    # Of two ranks, one killed and the other stopped: if rank 0 is the stopped one, it is that which is seen.
    _in_collective = (r"Rank 0 .*has not answered",) if _rank else (_who, "ended and another did not")
    CASES |= {
        f"kill rank {_rank}, idle": Case("idle", _kill),
        f"kill rank {_rank}, loading": Case("loading", _kill, (_who, KILLED)),
        f"kill rank {_rank}, in a step": Case("loop mode", _kill, (_who, KILLED)),
        f"kill rank {_rank}, in a step of ComfyUI's loop": Case("step mode", _kill, (_who, KILLED)),
        f"kill rank {_rank}, in a collective": Case("loop mode", kill_in_a_collective(_rank), _in_collective),
        f"stop rank {_rank}, idle": Case("idle", _stop),
        f"stop rank {_rank}, loading": Case("loading", _stop, (_who, SILENT), SILENCE + 6 * SILENCE_SECONDS),
        f"stop rank {_rank}, in a step": Case("loop mode", _stop, (_who, SILENT), SILENCE),
        f"stop rank {_rank}, in a step of ComfyUI's loop": Case("step mode", _stop, (_who, SILENT), SILENCE),
    }
