"""`cuda.stream_ranks CASES FOLDER`:
runs the engine on labelled tensors in simulated streams, and saves by case what the simulator finds, which collectives
it was told of, the most bytes in use and taken, and the bytes of what forwards returned.

CASES: of [what runs, plan, a wait that is taken away or ""]; of `RUNS` and `WAITS`.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

# Inference tensors cannot be labelled ones. What is imported from here on is decorated with this.
torch.inference_mode = torch.no_grad

import diffusers.models.autoencoders.autoencoder_kl  # noqa: E402, F401 (streams are simulated later)

from parallel_backend.groups.calls import NUMBERS  # noqa: E402
from parallel_backend.groups.collectives import collect, gather_numbers  # noqa: E402
from parallel_backend.groups.timeline import SILENT  # noqa: E402
from parallel_backend.hooks import Hooks  # noqa: E402
from parallel_backend.plan import HOST, SHARED, WHOLE, ParallelPlan  # noqa: E402
from parallel_backend.sampling.denoiser import LoopStopped, Watch  # noqa: E402
from parallel_backend.seams import attention  # noqa: E402
from parallel_backend.seams.bands.rows import ROWS  # noqa: E402
from parallel_backend.seams.kernels.backends import Backend  # noqa: E402
from parallel_backend.vae.pipeline import PipelineVAE  # noqa: E402
from parallel_backend.weights.host_memory import agree_on_memory  # noqa: E402
from parallel_backend.weights.loading import ModelSource  # noqa: E402
from parallel_backend.weights.parking import Parking  # noqa: E402
from parallel_backend.weights.stores import HostStore, ShardedStore, Store  # noqa: E402
from tests.support.cases.pipefusion_cases import case_inputs, family_of, scheduler_of  # noqa: E402
from tests.support.cases.vaes.vae_cases import CASES as VAES  # noqa: E402
from tests.support.family_model import Denoiser, FamilyModel  # noqa: E402
from tests.support.labelled.tensors import GPU, off_gpu, on_gpu  # noqa: E402
from tests.support.streams.device import on_streams  # noqa: E402
from tests.support.streams.waits import WAITS  # noqa: E402
from worker.rank.job_groups import JobGroups  # noqa: E402

MODEL = "flux-dev"  # with blocks of two kinds and MLPs that are put off
ADAPTED = "single_transformer_blocks.1.proj_out.weight"
VAE = "no attention"
TIMES = (1.0, 0.8, 0.6)


class Rig:
    """A model under a plan, with its weights where the plan has them, over the groups that a rank of the worker has."""

    def __init__(self, plan: ParallelPlan, folder: Path) -> None:
        self.groups = JobGroups(GPU, SILENT)
        self.plan, self.mesh = plan, self.groups.build_plan(plan)
        self.results = 0  # bytes of what forwards have returned to rank 0, and of its descriptions
        self.latents, self.conditions, self.negative = case_inputs(MODEL)
        file = folder / "diffusion_pytorch_model.safetensors"
        family = family_of(MODEL)
        if dist.get_rank() == 0 and not file.exists():
            with off_gpu():
                family.save(folder)
        gather_numbers((0,), None)
        self.model = FamilyModel.build(ModelSource(family.model_class, family.config, (str(file),), "fp32"), self.mesh)
        self.place(plan.weights)

    def place(self, weights: str) -> None:
        """Keeps all blocks there."""
        fetched = self.model.fetched
        store: Store | None = None
        if weights == SHARED:
            store = ShardedStore(self.groups.replicas(self.plan), GPU)
        if weights == HOST:
            what = (self.mesh["pipefusion"].index, fetched.sizes)
            memory = agree_on_memory(what, HostStore.total(fetched.sizes), None)
            store = HostStore(fetched.sizes, GPU, memory)
        self.model.bring(range(len(fetched.blocks)) if store else (), store)
        gather_numbers((0,), None)  # each has written to the host's memory what the others read there

    def forward(self, rows: int = 2, time: float = 1.0) -> None:
        conditions = {name: torch.cat([value] * rows) for name, value in self.conditions.items()}
        given = torch.cat([self.latents] * rows)
        result = self.model(given, torch.full((rows,), time), conditions)
        self.results += given.nbytes + 8 * NUMBERS
        if result is not None:
            result.sum()  # whoever asked for it reads it

    def sample(self, watch: Watch | None = None) -> None:
        Denoiser(self.model).sample(
            self.latents, scheduler_of("flow"), self.conditions, self.negative, 3.0, watch=watch
        )
        assert not self.model.slot.buffers, "an idle model holds no memory of messages"


def forwards(rig: Rig) -> None:
    """A step with two rows, and one with a single row."""
    rig.forward(2)
    rig.forward(1)


def steps(rig: Rig) -> None:
    for time in TIMES:
        rig.forward(1, time)


def loop(rig: Rig) -> None:
    rig.sample()


def multistep(rig: Rig) -> None:
    """Two samplings by a scheduler with a history: the second receives ahead from its first patches on."""
    for _ in range(2):
        Denoiser(rig.model).sample(rig.latents, scheduler_of("unipc"), rig.conditions, rig.negative, 3.0)


def parking(rig: Rig) -> None:
    """The weights go to RAM and back between two forwards; the second time no RAM is left to keep."""
    rig.forward()
    parked: Parking = rig.model.parking
    for left in (sys.maxsize, 0):
        parked.copy(agree_on_memory(parked.layout(), parked.size, None, parked.memory))
        gather_numbers((0,), None)
        parked.free_device()
        with patch("parallel_backend.weights.parking.available_ram_bytes", lambda left=left: left):
            parked.fill_device()
            parked.end()
        gather_numbers((0,), None)
        rig.forward()


def adapter(rig: Rig) -> None:
    """A weight changes where it is kept, as an adapter does it."""
    rig.forward()
    weight = rig.model.model.state_dict()[ADAPTED]
    fetched = {name: (place, own) for name, place, own in rig.model.fetched.names()}
    with off_gpu():
        value = torch.ones(weight.shape)
    if ADAPTED in fetched:
        rig.model.fetched.rewrite(*fetched[ADAPTED], value.to(GPU))
    else:
        weight.copy_(value)
    gather_numbers((0,), None)
    rig.forward()


def changes(rig: Rig) -> None:
    """The weights go from where they are to each other place, and the model to another plan."""
    for weights in (HOST, SHARED, WHOLE, SHARED, HOST, WHOLE):
        rig.forward()
        rig.place(weights)
    ring = ParallelPlan(ring=rig.plan.ulysses, weights=rig.plan.weights)
    rig.plan, rig.mesh = ring, rig.groups.build_plan(ring)
    rig.model.replan(rig.mesh)
    rig.forward()


class Cancel(Watch):
    def proceed(self, step: int) -> bool:
        return step < 2


def cancel(rig: Rig) -> None:
    try:
        rig.sample(Cancel())
    except LoopStopped:
        rig.sample()
    else:
        raise AssertionError("The sampling went on.")


def fail_in_a_block(rig: Rig) -> None:
    """A block fails in a forward."""
    block = rig.model.blocks[-2]

    def fail(*_: object) -> None:
        raise ArithmeticError

    handle = block.register_forward_pre_hook(fail)
    try:
        rig.forward()
    except ArithmeticError:
        handle.remove()


def failure(rig: Rig) -> None:
    """The forward after a failure succeeds."""
    fail_in_a_block(rig)
    rig.forward()


def release(rig: Rig) -> None:
    """A model is released while weights come for a forward that has failed."""
    fail_in_a_block(rig)
    del rig.model
    gc.collect()


def interruption(rig: Rig) -> None:
    """Attention fails while keys travel. Nobody waits for them, and the next forward succeeds."""
    rig.forward()

    def fail(*_: object) -> None:
        raise ArithmeticError

    with patch.object(Backend, "attend_with_lse", fail):
        try:
            rig.forward()
        except ArithmeticError:
            pass
        else:
            raise AssertionError("The forward went on.")
    rig.forward()


RUNS: dict[str, Callable[[Rig], None]] = {
    each.__name__: each
    for each in (
        forwards, steps, loop, multistep, parking, adapter, changes, cancel,
        failure, release, interruption,
    )
}  # fmt: skip


def decode() -> None:
    """A VAE's picture in bands of rows, on all ranks; then on the first alone, as ComfyUI gets it."""
    case = VAES[VAE]
    with off_gpu():
        model = case.build()
    axis = JobGroups(GPU, SILENT).world_axis()
    PipelineVAE(model.to(GPU), axis, Hooks())
    for _ in range(2):
        picture = model.decode(case.latents().to(GPU)).sample
        collect(picture[..., axis.own(picture.shape[ROWS]), :], ROWS, picture.shape[ROWS], axis)


def run_case(what: str, degrees: dict[str, Any], missing: str, folder: Path) -> dict[str, Any]:
    without = WAITS[missing].codes if missing else ()
    with on_gpu(counts_memory=False) as watch, on_streams(watch, without) as simulator:
        told: dict[str, Any] = {"failed": "", "results": 0}
        try:
            if what == "decode":
                decode()
            else:
                rig = Rig(ParallelPlan(**degrees), folder)
                RUNS[what](rig)
                told["results"] = rig.results
        except Exception:  # whatever it is fails that case's test; the others still run
            told["failed"] = "\n".join(traceback.format_exc().splitlines()[-12:])
    told["findings"] = list(simulator.findings.values())
    told["accesses"] = simulator.count
    told["in use"], told["taken"] = simulator.peak, simulator.taken
    told["kernels"] = [dataclasses.asdict(each) for each in simulator.kernels]
    return told


def on_ranks(cases: list, folder: str) -> dict[str, dict]:
    found = {}
    with patch.object(attention, "ROWS_OF_CARD", 1):  # so that small forwards are exchanged in parts, too
        for case in cases:
            found[json.dumps(case)] = run_case(*case, Path(folder) / "model")
    return found
