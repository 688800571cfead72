"""`torchrun -m tests.support.ranks.weights.fetched_memory_ranks FOLDER CASES OUT`:
loads models with weights that are fetched, and saves what a rank has of them at rest and while it loads, and how much
of the file it has read.

FOLDER gets the files. CASES: of a library, whether the file is in the dtype that is computed in, and a plan.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.groups.mesh import Mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import ModelSource
from parallel_backend.weights.sizes import fetched_places
from parallel_backend.weights.stores import Store
from parallel_backend.weights.tensors import list_plain_tensors
from tests.support.cases.families import FAMILIES
from tests.support.files import write_stock_models
from tests.support.group.footprint import return_freed_memory
from tests.support.ranks import host_ranks
from tests.support.ranks.leaving import leave
from tests.support.ranks.weights.fetching import Meshes
from worker.comfyui.source import HostSource
from worker.rank.model.host_model import HostModel

FLUX = FAMILIES["flux-dev"]
# Blocks of megabytes, beside which what else a rank takes meanwhile is little.
LARGE = {
    **FLUX.config,
    "attention_head_dim": 64,
    "axes_dims_rope": (16, 24, 24),
    "num_layers": 3,
    "num_single_layers": 6,
}
DEEP = "flux-deep"  # of ComfyUI's
EVERY = 8  # of the tensors that are read, after which it is looked what there is
Model = DiffusersModel | HostModel


def write(folder: Path) -> None:
    replace(FLUX, config=LARGE).save(folder / "fp32")
    (folder / "fp32" / "diffusion_pytorch_model.safetensors").rename(folder / "diffusers-fp32.safetensors")
    write_stock_models.main(os.environ["COMFYUI_PATH"], str(folder), DEEP)
    (folder / f"{DEEP}.safetensors").rename(folder / "comfyui-fp32.safetensors")
    for library in ("diffusers", "comfyui"):
        weights = load_file(folder / f"{library}-fp32.safetensors")
        save_file({name: held.bfloat16() for name, held in weights.items()}, folder / f"{library}-bf16.safetensors")


def build(library: str, file: Path, mesh: Mesh) -> Model:
    """To be computed in fp32."""
    if library == "diffusers":
        return DiffusersModel.build(ModelSource(FLUX.model_class, LARGE, (str(file),)), mesh)
    return HostModel.build(
        HostSource(os.environ["COMFYUI_PATH"], ("--cpu",), str(file), "Flux", "float32", "float32"), mesh
    )


def anonymous() -> int:
    """Bytes of memory of this process's own: no file's pages, nor what it shares with others."""
    (found,) = re.findall(r"^Anonymous: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(found) << 10


def pages(name: str, field: str) -> int:
    """Bytes of a file's pages that this process has looked at, by all of its mappings. field: Rss, or Pss for its part
    of those that others have looked at, too."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = name in line
        elif inside and line.startswith(f"{field}:"):
            found += int(line.split()[1]) << 10
    return found


def watched(store: Store, file: Path, told: dict[str, int], look: Callable[[], None]) -> None:
    """Has each row that is written to a store add what of the file was looked at for it."""
    written = store.write

    def write_and_look(*given: Any) -> None:
        look()
        before = pages(file.name, "Rss")
        written(*given)
        told["read"] += pages(file.name, "Rss") - before
        look()

    store.write = write_and_look  # pyright: ignore[reportAttributeAccessIssue]


def on_device(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of their storages, each once."""
    return sum({held.untyped_storage().data_ptr(): held.untyped_storage().nbytes() for held in tensors}.values())


def count_buffers(model: Model) -> int:
    """The bytes of ComfyUI's tensors beside the class, such as the sigmas of its schedule: the status counts them."""
    return 0 if isinstance(model, DiffusersModel) else sum(held.nbytes for held in model.patcher.model.buffers())


def measured(model: Model, kind: str, meshes: Meshes, file: Path) -> dict[str, int]:
    fetched, mesh = model.fetched, model.mesh
    stage = mesh["pipefusion"].index
    own = model.sizes.by_stage(mesh.plan)[stage]
    places = fetched_places(own, mesh.plan)
    store = meshes.store(kind, mesh, fetched)
    told = {"read": 0, "peak": 0}
    before = anonymous()

    def look() -> None:
        told["peak"] = max(told["peak"], anonymous() - before)

    if store:
        watched(store, file, told, look)
    asked = itertools.count()
    model.bring(places, store, lambda: None if next(asked) % EVERY else look())
    look()
    module = model.model if isinstance(model, DiffusersModel) else model.module.model
    names = {name for name, _, _ in fetched.names()}
    rows = [part for name, held in module.named_parameters() if name in names for part in list_plain_tensors(held)]
    others = sum(
        part.nbytes
        for name, held in module.named_parameters()
        if name not in names
        for part in list_plain_tensors(held)
    )
    live = others + on_device([*rows, *(store.on_device() if store else [])])
    told |= {"rest": anonymous() - before, "live": live, "said": model.weight_bytes - count_buffers(model)}
    told |= {
        "kept": model.sizes.count_kept_bytes(mesh.plan)[stage],
        "largest": max(own),
        "fetched": sum(own[place] for place in places),
    }
    fetched.begin()
    fetched.finish()
    dist.barrier()  # all have looked at all of it
    told["of the host"] = pages("/memfd:paralleldit", "Pss")
    dist.barrier()
    return told


def main(folder: str, cases: str, out: str) -> None:
    return_freed_memory()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if not dist.get_rank():
        write(Path(folder))
    dist.barrier()
    meshes, found = Meshes(), []
    for library, dtype, values in json.loads(Path(cases).read_text()):
        plan = ParallelPlan.from_json(values)
        file = Path(folder) / f"{library}-{dtype}.safetensors"
        model = build(library, file, meshes.of(plan))
        found.append([library, dtype, values, measured(model, plan.weights, meshes, file)])
        del model
        gc.collect()
        dist.barrier()
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    assert host_ranks  # imports ComfyUI, once for all ranks
    main(*sys.argv[1:])
