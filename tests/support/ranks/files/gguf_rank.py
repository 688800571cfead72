"""`files.gguf_rank COMFYUI FILE DEQUANTISED UNPACKED`:
loads a tiny Flux from a GGUF file, and saves what memory it takes and what becomes of it under adapters and parking.

DEQUANTISED is the same file's weights in safetensors. UNPACKED is a file whose weights are dequantised as they are
loaded: an adapter changes them in fetched blocks, too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.host_memory import HostMemory
from parallel_backend.weights.stores import HostStore
from parallel_backend.weights.tensors import list_storages
from tests.support.ranks.files.tiny_flux import call, differences
from worker.comfyui.source import HostSource
from worker.rank.model.host_model import HostModel

CPU = torch.device("cpu")
ADAPTED = "single_blocks.0.linear1.weight"


def held_bytes(module: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def copied_bytes(file: str) -> int:
    """Of the file's mapped pages, those that are this process's own."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(file)
        elif inside and line.startswith("Anonymous:"):
            found += int(line.split()[1]) * 1024
    return found


def parked(model: HostModel, module: torch.nn.Module) -> dict[str, Any]:
    """With an adapter, of weights in memory of their own, as on a GPU: the file's pages cannot be freed."""
    for name, parameter in list(module.named_parameters()):
        path, _, own = name.rpartition(".")
        setattr(module.get_submodule(path), own, torch.nn.Parameter(parameter.clone(), requires_grad=False))
    adapt(model)
    before, parking = call(model), model.parking
    parking.copy(HostMemory(parking.size))
    parking.free_device()
    left = sum(storage.nbytes() for storage in list_storages(module, CPU, parking.extra))
    parking.fill_device()
    parking.end()
    return {"left when parked": left, "parked and restored": torch.equal(call(model), before)}


def adapt(model: HostModel) -> None:
    model.patch(*differences(model, (ADAPTED,)))


def adapted(source: HostSource, is_fetched: bool) -> torch.Tensor:
    """A forward with an adapter."""
    model = HostModel.build(source, build_mesh(ParallelPlan(), CPU))
    sizes = model.fetched.sizes
    store = HostStore(sizes, CPU, HostMemory(HostStore.total(sizes))) if is_fetched else None
    model.bring(range(len(model.fetched.blocks)) if is_fetched else (), store)
    adapt(model)
    return call(model)


def on_ranks(comfyui: str, file: str, dequantised: str, unpacked: str) -> dict[str, Any]:
    mesh, right = build_mesh(ParallelPlan(), CPU), load_file(dequantised)
    source = HostSource(comfyui, ("--cpu",), file, "Flux", "bfloat16", "")
    model = HostModel.build(source, mesh)
    model.bring((), None)
    weights = model.parallel.model.state_dict()
    # Whatever is done to a packed weight, but to add nothing, is done to the dequantised one.
    found: dict[str, Any] = {
        "in bf16": all(torch.equal(weights[name] + 0, value.bfloat16()) for name, value in right.items())
    }
    model = HostModel.build(HostSource(comfyui, ("--cpu",), file, "Flux", "float32", ""), mesh)
    model.bring((), None)
    module = model.parallel.model
    plain = call(model)
    found |= {"held": held_bytes(module), "copied": copied_bytes(file)}
    adapt(model)
    found |= {"changed": not torch.equal(call(model), plain), "held with an adapter": held_bytes(module)}
    model.patch({}, {})
    found |= {"as before": torch.equal(call(model), plain), "copied after all": copied_bytes(file)}
    of_unpacked = HostSource(comfyui, ("--cpu",), unpacked, "Flux", "float32", "")
    alike = torch.equal(adapted(of_unpacked, True), adapted(of_unpacked, False))
    return {**found, **parked(model, module), "fetched alike": alike}
