"""`speed.mlp_overlap_ranks CASES`:
runs models of both libraries on as many ranks, and returns how many products each block computes between the first
exchange's start and the wait for it, block by block. CASES: of a model, its library and blocks, an axis of the ranks,
and where the weights wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.exchange import ring, ulysses
from tests.support.ranks.speed.compiled_ranks import of_comfyui, of_diffusers
from tests.support.ranks.weights.fetching import Meshes, Way

PRODUCTS = {torch.ops.aten.linear, torch.ops.aten.addmm, torch.ops.aten.mm}


class Events(TorchDispatchMode):
    """While entered, writes down what blocks do, in a row each, of all that attend over the ranks."""

    def __init__(self, blocks: list[torch.nn.Module]) -> None:
        super().__init__()
        self.blocks: list[list[str]] = []
        self.handles = [block.register_forward_pre_hook(lambda *_: self.blocks.append([])) for block in blocks]

    def note(self, event: str) -> None:
        if self.blocks:
            self.blocks[-1].append(event)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func.overloadpacket in PRODUCTS:
            self.note("product")
        return func(*args, **(kwargs or {}))

    def noted(self, begin: Callable[..., Callable[[], torch.Tensor]]) -> Callable[..., Callable[[], torch.Tensor]]:
        """What begins an exchange, and returns what waits for it."""
        return lambda *args: self.wait_for(begin(*args))

    def wait_for(self, arrive: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.note("sent")

        def arrived() -> torch.Tensor:
            self.note("arrived")
            return arrive()

        return arrived

    def noted_hops(self, begin: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """What begins a hop of the ring, and returns what is waited for."""
        return lambda *args: [self.wait_for_work(work) for work in begin(*args)]

    def wait_for_work(self, work: dist.Work) -> Mock:
        return Mock(wait=self.wait_for(work.wait))

    def under_way(self) -> list[int]:
        """By block, the products between the first that is sent and the first that is waited for."""
        return [row[row.index("sent") : row.index("arrived")].count("product") for row in self.blocks]


def products(name: str, library: str, blocks: str, meshes: Meshes, axis: str, weights: str) -> list[int]:
    """Of the blocks of one list."""
    mesh = meshes.of(ParallelPlan(**{axis: dist.get_world_size()}))
    model, (run, *_) = (of_comfyui if library == "comfyui" else of_diffusers)(name, mesh)
    fetched = model.fetched
    fetched.rearrange(Way(weights).places(len(fetched.blocks)), meshes.store(weights, mesh, fetched))
    dist.barrier()  # each has written to the host's memory what the others read there
    events = Events([*model.model.get_submodule(blocks).children()])
    sends = patch.object(ulysses, "exchange", events.noted(ulysses.exchange))
    hops = patch.object(ring, "_pass_on", events.noted_hops(ring._pass_on))
    with events, sends, hops:
        run()
    return events.under_way()


def on_ranks(cases: list) -> dict[str, list[int]]:
    meshes = Meshes()
    return {
        f"{library} {name} {axis}": products(name, library, blocks, meshes, axis, weights)
        for name, library, blocks, axis, weights in cases
    }
