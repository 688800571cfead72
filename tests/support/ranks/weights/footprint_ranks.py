"""`weights.footprint_ranks CASES`:
loads models under plans with every kind of weights, runs them, and returns what of memory this rank took, in
bytes, beside what `WeightSizes` says of it.
"""

from __future__ import annotations

import gc
import zlib
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import HOST, SHARED, ParallelPlan
from parallel_backend.weights.fitting import count_host_bytes
from parallel_backend.weights.loading import ModelSource
from parallel_backend.weights.placement import AllRanks, place_model
from parallel_backend.weights.sizes import fetched_blocks
from parallel_backend.weights.stores import HostStore
from parallel_backend.weights.tensors import list_storages
from tests.support.family_model import FamilyModel
from tests.support.group.footprint import Storages, mapped_at, shared_bytes
from worker.comfyui.source import HostSource
from worker.rank.model.host_model import HostModel

CPU = torch.device("cpu")
Model = FamilyModel | HostModel


def run(model: Model, latents: list[int], conditions: dict[str, list[int]]) -> torch.Tensor | None:
    """A forward, with the same random input on all ranks; what rank 0 gets."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, *latents, generator=generator)
    given = {name: torch.randn(1, *shape, generator=generator) for name, shape in conditions.items()}
    if isinstance(model, FamilyModel):
        return model(x, torch.tensor([0.5]), given)
    dtype = model.parallel.dtype
    kwargs = {name: value.to(dtype) for name, value in given.items()}
    call = Call((x.to(dtype), torch.tensor([0.5])), {**kwargs, "transformer_options": {}})
    outputs = model.call([call])
    return outputs and outputs[0]


def built(case: dict[str, Any], ranks: AllRanks, plan: ParallelPlan) -> Model:
    """The model without its weights."""
    mesh = build_mesh(plan, ranks.device)
    if case["library"] == "diffusers":
        return FamilyModel.build(ModelSource(**case["source"]), mesh)
    return HostModel.build(HostSource.from_json(case["source"]), mesh)


def measured(case: dict[str, Any], ranks: AllRanks) -> dict[str, Any]:
    """Of one case, what was taken and read, beside what was told. copy: of host memory, this rank's part."""
    plan, files = ParallelPlan.from_json(case["plan"]), case["files"]
    with Storages(files) as storages:
        model = built(case, ranks, plan)
        storages.peak = storages.live  # a model of ComfyUI's is made with room that nothing is written to
        place_model(ranks, model)
        gc.collect()
        loaded, held = storages.peak, storages.live
        dist.barrier()
        run(model, case["latents"], case["conditions"])  # buffers and libraries warm up
        storages.peak = storages.live
        output = run(model, case["latents"], case["conditions"])
        dist.barrier()
        copy = shared_bytes()
        dist.barrier()
    store = model.fetched.store
    own_copy = mapped = 0  # of memory that is no other rank's, too
    if isinstance(store, HostStore) and not copy:
        own_copy, mapped = sum(row.nbytes for row in store.blocks.values()), store.memory.size
    module = model.model if isinstance(model, FamilyModel) else model.parallel.model
    in_pages = sum(each.nbytes() for each in list_storages(module, CPU) if mapped_at(each.data_ptr(), storages.files))
    return {
        **expected(model, plan),
        "live": held - mapped + in_pages,
        "loading live": loaded - mapped + in_pages,
        "block live": storages.peak - mapped + in_pages,
        "copy": copy or own_copy,
        "read": storages.read_bytes,
        "output": 0 if output is None else zlib.crc32(output.float().contiguous().numpy().tobytes()),
    }


def expected(model: Model, plan: ParallelPlan) -> dict[str, int]:
    """What is told of a rank before anything is loaded."""
    sizes, stage = model.sizes, model.mesh["pipefusion"].index
    own = sizes.by_stage(plan)[stage]
    fetched = sum(own[place] for place in fetched_blocks(own, plan))
    ways = {SHARED: plan.replicas, HOST: dist.get_world_size() // plan.pipefusion}.get(plan.weights, 1)
    return {
        "told": sizes.count_resident_bytes(plan)[stage],
        "largest": max(own),
        "told copy": count_host_bytes(plan, sizes),
        "told read": sizes.rest + sum(own) - fetched + fetched // ways,
    }


def on_ranks(cases: list[dict]) -> list[dict]:
    """Cases: JSON objects of library, plan, source, files, latents, conditions."""
    ranks = AllRanks(CPU)
    return [measured(case, ranks) for case in cases]
