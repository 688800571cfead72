"""`torchrun -m tests.support.ranks.cuda.device_ranks DEVICE CASES OUT`:
runs models on the ranks' devices, and writes what became of each case, a line as it ends, to OUT.RANK.

DEVICE: "cuda" or "cpu". CASES: a file of JSON, of [library, name, plan, dtype]; of `libraries`, and "compiled"
and "memory", which are diffusers'. A line has the case, and either "failed", "refused" or what there is to
say: the relative error against the CPU in fp32; in halves, and if it is large, the plain class's own; and on CUDA, how
often the host waited for the device in a second run, by place, inside of blocks and outside.

A rank that cannot go on after a failure, as others wait for it or its device is lost, ends: the cases left need other
ranks.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import torch
import torch.distributed as dist

from parallel_backend.costs.memory import one_device_bytes, rank_bytes, stale_bytes
from parallel_backend.errors import PlanError
from parallel_backend.groups.mesh import start_distributed
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.stepper import Stepper
from parallel_backend.seams.compiled import BY_PLAN, CompiledBlocks
from tests.support.cases.families import DEEP
from tests.support.cases.references import relative_error
from tests.support.fakes.tally import Tally
from tests.support.family_model import Denoiser, FamilyModel
from tests.support.ranks.cuda.libraries import LIBRARIES, PLAIN, STEPS, Bench
from tests.support.ranks.leaving import leave

LINES = 9  # of a traceback
OTHERS_SECONDS = 10.0  # for the other ranks to end the case, too
FAILED = "failed"
DEEP_SIDES = (64, 64)  # of latents
NEAR = 1e-5  # a result in fp32: if it is not, the plain class on the same device is computed, too
WAITED = "synchronizing CUDA operation"  # torch's warning of a wait


@dataclass
class Waits:
    """The host's waits for the device, of which torch knows, by the place in Python that caused them."""

    inside: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    depth: int = 0

    def note(self, message: Warning | str, _category: type, file: str, line: int, *_: object) -> None:
        if WAITED in str(message):
            (self.inside if self.depth else self.outside)[f"{'/'.join(Path(file).parts[-2:])}:{line}"] += 1

    def change(self, by: int) -> None:
        self.depth += by

    @contextmanager
    def counted(self) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = self.note
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")


def watched(waits: Waits, blocks: Iterable[torch.nn.Module], run: Callable[[], Any], _more: object) -> Any:
    """What comes of a second run, whose waits are counted."""
    run()
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: waits.change(1), prepend=True)
        block.register_forward_hook(lambda *_: waits.change(-1), always_call=True)  # a stage leaves by an exception
    with waits.counted():
        return run()


def compared(bench: Bench, library: str, name: str, plan: ParallelPlan, dtype: str) -> dict[str, Any]:
    waits = Waits()
    if library == "compiled":
        library, bench = "diffusers", replace(bench, run=compiled)
    elif bench.device.type == "cuda":
        bench = replace(bench, run=partial(watched, waits))
    result, right = LIBRARIES[library](bench, name, plan, dtype)
    told: dict[str, Any] = {"inside": waits.inside, "outside": waits.outside}
    if result is None or right is None:
        return told
    told["error"] = relative_error(result.cpu(), right)
    has_plain = library in PLAIN and plan.pipefusion == 1  # a forward, and no sampling
    if has_plain and (dtype != "fp32" or told["error"] > NEAR):
        plain = PLAIN[library](name, bench.device, dtype)
        told["plain"] = relative_error(plain, right)
    return told


def memory(bench: Bench, plan: ParallelPlan, dtype: str) -> dict[str, Any]:
    """The most bytes beside the weights while a deep model samples: what tensors need, what torch's allocator takes,
    and what is predicted that they need."""
    source, (latents, _, conditions) = bench.source("deep", DEEP, dtype), DEEP.inputs(1, *DEEP_SIDES)
    model = FamilyModel.load(source, bench.mesh(plan))
    tokens = math.prod(latents.shape[2:]) // math.prod(model.patch_size(latents))
    width = DEEP.config["num_attention_heads"] * DEEP.config["attention_head_dim"] * model.dtype.itemsize
    predicted = rank_bytes(one_device_bytes(tokens * width), 1, plan)
    predicted += stale_bytes(model.model, plan, model.sizes, model.dtype, tokens)

    def sample() -> tuple[int, int]:
        stepper = Stepper.prepare(diffusers.FlowMatchEulerDiscreteScheduler(), STEPS, device=bench.device)
        with counted(bench.device, model.model) as most:
            Denoiser(model).sample(latents, stepper, conditions)
        return most()

    sample()  # kernels take memory to work in, and keep it
    return dict(zip(("needed", "taken"), sample(), strict=True)) | {"predicted": predicted}


@contextmanager
def counted(device: torch.device, model: torch.nn.Module) -> Iterator[Callable[[], tuple[int, int]]]:
    """Gives what tensors need at most while it is entered, and what torch's allocator takes, beside what there was."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_stats(device)
        names = [f"{kind}_bytes.all" for kind in ("allocated", "active")]  # active: what waits for other streams, too
        yield lambda: tuple(
            torch.cuda.memory_stats(device)[f"{name}.peak"] - before[f"{name}.current"] for name in names
        )
        return
    tally = Tally(of_cpu=True)
    for each in (*model.parameters(), *model.buffers()):
        tally.hold(each)
    weights = tally.live
    with tally:
        yield lambda: (tally.peak - weights, tally.taken - weights)


def outcome(bench: Bench, library: str, name: str, degrees: dict[str, Any], dtype: str) -> dict[str, Any]:
    try:
        plan = ParallelPlan(**degrees)
        if library == "memory":
            return memory(bench, plan, dtype)
        return compared(bench, library, name, plan, dtype)
    except PlanError as error:
        return {"refused": str(error)}
    except Exception:  # whatever it is fails that case's test; the others still run
        return {"failed": "\n".join(traceback.format_exc().splitlines()[-LINES:])}


def can_go_on(bench: Bench, place: int, store: dist.Store, failed: bool) -> bool:
    """Whether, after a failure, all ranks have failed alike, and this one's device still works."""
    store.set(f"case {place} of {dist.get_rank()}", FAILED if failed else "")
    if not failed:
        return True
    bench.meshes.clear()
    ranks = [f"case {place} of {rank}" for rank in range(dist.get_world_size())]
    try:
        if bench.device.type == "cuda":
            torch.cuda.synchronize(bench.device)
        store.wait(ranks, timedelta(seconds=OTHERS_SECONDS))
    except RuntimeError:
        return False
    return all(store.get(rank) == FAILED.encode() for rank in ranks)


def compiled(blocks: Iterable[torch.nn.Module], run: Callable[[], Any], _more: object) -> Any:
    blocks = list(blocks)
    with CompiledBlocks(blocks, next(blocks[0].parameters()).device).running(BY_PLAN):
        return run()


def main(device_type: str, cases: str, out: str) -> None:
    torch.set_num_threads(1)
    # The CPU, which results are compared with, has no TF32.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = start_distributed(device_type)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    bench = Bench(device, Path(out).parent, lambda _blocks, run, _more: run())
    with Path(f"{out}.{dist.get_rank()}").open("a") as file:
        for place, case in enumerate(json.loads(Path(cases).read_text())):
            told = outcome(bench, *case)
            print(json.dumps({"case": case, **told}), file=file, flush=True)
            if not can_go_on(bench, place, store, "failed" in told):
                os._exit(1)
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
