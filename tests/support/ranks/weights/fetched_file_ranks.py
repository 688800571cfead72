"""`weights.fetched_file_ranks FOLDER CASES`:
loads tiny Flux files of ComfyUI's formats with weights that are fetched, adapts them and changes plans, and saves where
they are equal to whole ones.

FOLDER gets the files. CASES: of a form, a plan, another for the same weights, and the kind of weights that come first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.tensors import list_plain_tensors
from tests.support.cases.files.formats import FORMATS
from tests.support.files import quantise, write_stock_models
from tests.support.files.write_gguf import write_gguf
from tests.support.ranks import host_ranks  # noqa: F401 (imports ComfyUI, once for all ranks)
from tests.support.ranks.files import tiny_flux
from tests.support.ranks.weights.fetching import Meshes, poison_buffers, same, ways_from
from worker.comfyui.gguf_blocks import FORMATS as BLOCKS
from worker.comfyui.source import HostSource
from worker.rank.model.host_model import HostModel

NAME = "longcat-image"
# What the weights are in on the device, and what they are computed in, where the file does not say it.
DTYPES = {"plain fp8": ("float8_e4m3fn", "float32")}
OTHER_DTYPE = "bf16"  # a file in it is cast to fp32 as it is read
STRENGTHS = (1.0, -0.5)
Outputs = list[torch.Tensor | None]


def write(folder: Path, forms: set[str]) -> None:
    """The files that are not there yet."""
    comfyui = os.environ["COMFYUI_PATH"]
    plain = folder / f"{NAME}.safetensors"
    if not plain.exists():
        write_stock_models.main(comfyui, str(folder), NAME)
    weights = load_file(plain)
    for form in forms:
        file = file_of(folder, form)
        if form in FORMATS and not file.exists():
            save_file(quantise.quantised(weights, form), file)
        if form == "gguf" and not file.exists():
            write_gguf(weights, file, [*reversed(BLOCKS)])
        if form == OTHER_DTYPE and not file.exists():
            save_file({name: weight.bfloat16() for name, weight in weights.items()}, file)


def file_of(folder: Path, form: str) -> Path:
    if form == "gguf":
        return folder / f"{NAME}.gguf"
    return folder / (f"{NAME}-{form}.safetensors" if form in (*FORMATS, OTHER_DTYPE) else f"{NAME}.safetensors")


def call(model: HostModel) -> Outputs:
    return [tiny_flux.call(model, rows=2)]


def adapt(model: HostModel, strength: float) -> None:
    """A LoRA for each matrix of the blocks, and a difference outside of them; without strength, none."""
    model.patch(*(tiny_flux.lora(model, 0.05, strength, ("img_in.weight",)) if strength else ({}, {})))


def kinds(model: HostModel) -> list[tuple[str, str, str]]:
    """Of each weight, its class and what it is made of: what it would lose if it were dequantised."""
    return [
        (name, type(held.data).__name__, str([(part.dtype, tuple(part.shape)) for part in list_plain_tensors(held)]))
        for name, held in model.parallel.model.named_parameters()
    ]


def equal_to_whole(meshes: Meshes, source: HostSource, plans: list[ParallelPlan], first: str) -> dict[str, bool]:
    mesh, other = (meshes.of(plan) for plan in plans)
    whole = HostModel.build(source, mesh)
    whole.bring((), None)
    classes, plain, adapted = kinds(whole), call(whole), []
    for strength in STRENGTHS:
        adapt(whole, strength)
        adapted.append(call(whole))
    whole.replan(other)
    elsewhere = call(whole)

    model = HostModel.build(source, mesh)
    found = {}

    def bring(kind: str, places: Any) -> None:
        model.bring(places, meshes.store(kind, model.mesh, model.fetched))
        dist.barrier()

    def check(what: str, right: Outputs) -> None:
        dist.barrier()
        found[what] = same(call(model), right)
        found[f"{what}: of the same classes"] = kinds(model) == classes

    ways = ways_from(first, plans[0])
    blocks = len(model.fetched.blocks)
    for number, way in enumerate(ways):
        after = ways[(number + 1) % len(ways)]
        bring(way.kind, way.places(blocks))
        check(f"{number} {way}", plain)
        adapt(model, STRENGTHS[0])
        check(f"{number} {way}, adapted", adapted[0])
        adapt(model, STRENGTHS[1])
        check(f"{number} {way}, of another strength", adapted[1])
        bring(after.kind, after.places(blocks))
        check(f"{number} {way}, then {after}, adapted", adapted[1])
        model.replan(other)
        check(f"{number} {way}, then {after} under another plan", elsewhere)
        model.replan(mesh)
        adapt(model, 0.0)
        check(f"{number} {way}, then {after}, adapted no more", plain)
    if not dist.get_rank():
        found["the adapter changes something"] = not any(
            same(plain, each) or same(elsewhere, plain) for each in adapted
        )
    return found


def on_ranks(folder: str, wanted: list) -> list[list]:
    poison_buffers()
    meshes, found = Meshes(), []
    if not dist.get_rank():
        write(Path(folder), {form for form, *_ in wanted})
    dist.barrier()
    for form, degrees, others, first in wanted:
        file = str(file_of(Path(folder), form))
        dtypes = DTYPES.get(form, ("float32", "float32"))
        source = HostSource(os.environ["COMFYUI_PATH"], ("--cpu",), file, "Flux", *dtypes, keeps_small=True)
        plans = [ParallelPlan.from_json(each) for each in (degrees, others)]
        found.append([form, degrees, others, first, equal_to_whole(meshes, source, plans, first)])
    return found
