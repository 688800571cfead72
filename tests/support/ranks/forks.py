"""`python -m tests.support.ranks.forks`: runs programs of this folder on ranks that it forks off itself.

torch and diffusers, whose import takes a rank seconds, are imported once, here. A line on stdin is a job, as JSON:
program (MODULE:FUNCTION, or a module with `on_ranks` or `main`), ranks, arguments, folder, environment, seconds. Each
rank joins gloo's group and runs the function; a `main` joins and leaves by itself. The job is answered by a line with
the ranks' exit codes; what a rank prints is in FOLDER/rank-N.log, and what its function returns in
FOLDER/result-N.json: JSON, or a pair of it and tensors by name, which are in FOLDER/result-N.safetensors. The end of
stdin ends all.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path

from worker.launch.imports import pause_garbage_collector

with pause_garbage_collector():
    import diffusers
    import torch
    import torch.distributed as dist
    from safetensors.torch import save_file

    from tests.support.cases.families import FAMILIES
    from tests.support.ranks.leaving import leave

POLL_SECONDS = 0.02
OBJECTS = 20_000  # new ones after which a rank looks for garbage; Python's own 700 took a rank 3 % of its time
STACKS, STACK_SECONDS = signal.SIGUSR1, 0.5  # makes a rank write its stacks, and the time that it has
GRACE_SECONDS = 5.0  # for the other ranks to say what they saw, after the first one that failed


def be_rank(rank: int, job: dict) -> None:
    """In a fork: runs the job's program, and never returns."""
    log = os.open(Path(job["folder"], f"rank-{rank}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(ours, standard)
    faulthandler.register(STACKS, file=2)
    os.environ.update(job["environment"])
    os.environ.update(dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)))
    os.environ.update(dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(job["ranks"])))
    name, _, function = job["program"].partition(":")
    program = sys.modules[name]
    try:
        if on_ranks := getattr(program, function or "on_ranks", None):
            torch.set_num_threads(1)
            dist.init_process_group("gloo")
            result = on_ranks(*job["arguments"])
            if isinstance(result, tuple):
                result, tensors = result
                made = {name: tensor.contiguous() for name, tensor in tensors.items()}
                save_file(made, Path(job["folder"], f"result-{rank}.safetensors"))
            Path(job["folder"], f"result-{rank}.json").write_text(json.dumps(result))
            leave()
        program.main(*job["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # a program that is done has left by itself


def run(job: dict) -> list[int | None]:
    """The ranks' exit codes; None of one that did not end in time."""
    with pause_garbage_collector():  # whatever is there now is not scanned in the ranks
        importlib.import_module(job["program"].partition(":")[0])
    threads = len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else 1
    assert threads == 1, f"{threads} threads: a fork would have one of them alone, and the others' locks"
    pids = []
    for rank in range(job["ranks"]):
        pid = os.fork()
        if not pid:
            be_rank(rank, job)
        pids.append(pid)
    codes: dict[int, int | None] = {}
    deadline = time.monotonic() + job["seconds"]
    while len(codes) < len(pids) and time.monotonic() < deadline:
        if select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
            deadline = 0.0  # nobody waits for the answer
        for pid in (pid for pid in pids if pid not in codes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
                if codes[pid]:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    left = [pid for pid in pids if pid not in codes]
    for pid in left:  # whoever waits says where, also in a collective
        os.kill(pid, STACKS)
    time.sleep(STACK_SECONDS if left else 0)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [codes.get(pid) for pid in pids]


def main() -> None:
    torch.set_num_threads(1)
    gc.set_threshold(OBJECTS)
    with pause_garbage_collector():
        for family in FAMILIES.values():
            getattr(diffusers, family.model_class)  # which diffusers imports when it is asked for
    for line in sys.stdin:
        codes = run(json.loads(line))
        print(json.dumps(codes), flush=True)
    os._exit(0)  # without the seconds that it takes to tear torch down


if __name__ == "__main__":
    main()
