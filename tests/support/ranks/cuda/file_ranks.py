"""`cuda.file_ranks CAPABILITY CASES`:
loads tiny Flux files as `HostModel` does, on a labelled card, and saves by case: the relative errors against the same
on the CPU, without and with an adapter; how often the host would have waited in a forward after the first; how many
bytes were on the card; and how many layers were computed while keys travelled.

CAPABILITY: of the card. CASES: of a name, a file, what its weights are stored in and computed in, a plan, and the share
of the weights that the card has room for.
ComfyUI, which COMFYUI_PATH names, is imported with this on such a card, as it looks for cards once; and so once for all
ranks that are forked off one process.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist

# Inference tensors cannot be labelled ones. What is imported from here on is decorated with this.
torch.inference_mode = torch.no_grad

from parallel_backend.groups.mesh import build_mesh  # noqa: E402
from parallel_backend.models.checks import modules_at  # noqa: E402
from parallel_backend.plan import ParallelPlan  # noqa: E402
from parallel_backend.seams.forward import Forward  # noqa: E402
from parallel_backend.weights.placement import AllRanks, place_model  # noqa: E402
from parallel_backend.weights.tensors import list_plain_tensors  # noqa: E402
from tests.support.cases.references import relative_error  # noqa: E402
from tests.support.labelled.card import Card, card  # noqa: E402
from tests.support.labelled.tensors import GPU, off_gpu, on_gpu  # noqa: E402
from tests.support.labelled.watch import Watch, counted  # noqa: E402
from tests.support.ranks.files.tiny_flux import call, lora  # noqa: E402
from worker.comfyui.model import import_comfyui  # noqa: E402
from worker.comfyui.source import HostSource  # noqa: E402
from worker.rank.model.host_model import HostModel  # noqa: E402
from worker.wire.tensors import Tensors  # noqa: E402

CPU = torch.device("cpu")
ARGUMENTS = ("--use-pytorch-cross-attention",)
WHOLE = 24 << 30  # bytes of a card that has room for everything
ADA = (8, 9)
COMFYUI = os.environ["COMFYUI_PATH"]

with on_gpu() as first_watch, card(first_watch.memory, WHOLE, ADA):
    import_comfyui(HostSource(COMFYUI, ARGUMENTS, "", "", "", ""))


@contextlib.contextmanager
def noting_deferred() -> Iterator[list[int]]:
    """While entered, notes by call of attention over the ranks how many layers are computed while keys travel."""
    found: list[int] = []
    run_deferred = Forward.run_deferred

    def noted(forward: Forward) -> None:
        found.append(len(forward.deferred))
        run_deferred(forward)

    with patch.object(Forward, "run_deferred", noted):
        yield found


class Case(NamedTuple):
    name: str
    file: str
    dtype: str
    cast: str
    plan: dict[str, int]
    share: float


class Noted(HostModel):
    """in_ram: bytes of weights in the host's memory, beside the file's pages, when all are there to be placed."""

    in_ram = 0

    def load_onto_device(self, working_bytes: int = 0, whole: bool = False) -> None:
        pages = {part.data_ptr() for held in self.in_file.values() for part in list_plain_tensors(held)}
        parts = [part for held in self.parallel.model.parameters() for part in list_plain_tensors(held)]
        self.in_ram = sum(part.nbytes for part in parts if part.device == CPU and part.data_ptr() not in pages)
        super().load_onto_device(working_bytes, whole)


class Reference(NamedTuple):
    """What is right of a file, by its model on the CPU under the same plan: some formats round by all tokens of a rank.

    outputs: without and with an adapter, on rank 0. weights: bytes of all. largest: numbers of the largest that the
    adapter changes.
    """

    outputs: list[torch.Tensor | None]
    patches: dict[str, list]
    factors: Tensors
    weights: int
    largest: int


def source_of(file: str, dtype: str, cast: str) -> HostSource:
    return HostSource(COMFYUI, ARGUMENTS, file, "Flux", dtype, cast)


@functools.cache
def reference(plan: ParallelPlan, *of_source: str) -> Reference:
    """All ranks call it together."""
    mesh = build_mesh(plan, CPU)
    with off_gpu() if plan.world_size == 1 else contextlib.nullcontext(), torch.no_grad():  # else, seams have modes
        model = HostModel.build(source_of(*of_source), mesh)
        model.bring((), None)
        weights, (patches, factors) = model.weight_bytes, lora(model, 0.02)
        outputs = [call(model)]
        model.patch(patches, factors)
        outputs.append(call(model))
        largest = max(model.patcher.model.get_parameter(name).numel() for name in patches)
    return Reference(outputs, patches, factors, weights, largest)


def of_case(case: Case, watch: Watch, there: Card) -> dict[str, Any]:
    import comfy.model_management as management

    plan, memory = ParallelPlan(**case.plan), watch.memory
    of_source = (case.file, case.dtype, case.cast)
    there.total = WHOLE
    management.LORA_COMPUTE_DTYPES[CPU] = management.lora_compute_dtype(GPU)  # which else is fp32
    right, patches, factors, weights, largest = reference(plan, *of_source)
    if case.share < 1:
        there.leave(int(case.share * weights))
    gc.collect()

    before, ranks = memory.in_use, AllRanks(GPU)
    model = Noted.build(source_of(*of_source), build_mesh(plan, GPU))
    place_model(ranks, model)
    told: dict[str, Any] = {"weights": weights, "loaded": memory.in_use - before, "in RAM": model.in_ram}
    pinner = model.fetched.store and model.fetched.store.pinner
    told["pinned"] = pinner.pinned if pinner else 0
    blocks = [block for row in model.parallel.spec.blocks for block in modules_at(model.parallel.model, row.path)]
    made = [counted(watch, blocks, lambda: call(model))]
    pages = {weight.data_ptr() for weight in model.in_file.values()}
    memory.restart()
    model.patch(patches, factors)
    told |= {"peak": memory.peak - before, "adapted": memory.in_use - before}
    told["copied"] = sum(
        kept.weight.nbytes for kept in model.patcher.backup.values() if kept.weight.data_ptr() not in pages
    )
    told["factors"] = sum(factor.nbytes for factor in factors.values())
    told["largest"] = largest
    made.append(call(model))
    model.patch({}, {})
    with noting_deferred() as told["beside"]:
        made.append(call(model))
    if dist.get_rank() == 0:
        plain, adapted = right
        told["errors"] = [
            relative_error(one.cpu().float(), other.float())
            for one, other in zip(made, (plain, adapted, plain), strict=True)
        ]
        told["changed"] = relative_error(adapted.float(), plain.float())
    return told | {"inside": watch.inside, "outside": watch.outside}


def on_ranks(capability: list[int], cases: list) -> dict[str, dict]:
    found = {}
    for values in cases:
        case = Case(*values)
        with on_gpu() as watch, card(watch.memory, WHOLE, tuple(capability)) as there:
            gc.freeze()  # what has been imported is not looked through for each case
            try:
                found[case.name] = of_case(case, watch, there)
            except Exception:  # whatever it is fails that case's test; the others still run
                found[case.name] = {"failed": "\n".join(traceback.format_exc().splitlines()[-12:])}
            gc.collect()
    return found
