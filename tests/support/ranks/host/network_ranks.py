"""`host.network_ranks PLANS`:
runs networks beside a model (ComfyUI's ControlNets) and inside of one under plans. Returns, by row and plan: the
relative error, of a ControlNet of each rank; of a network inside also the share of its tokens that this rank computes,
and by row what the network changes."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import Mesh, build_mesh
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.forward import Forward
from tests.support.cases.host import HostCase
from tests.support.cases.host.controlnets import CONTROLNETS
from tests.support.cases.host.networks import NETWORKS, NetworkCase
from tests.support.cases.references import relative_error
from tests.support.ranks import host_ranks  # noqa: F401 (imports ComfyUI)

Found = dict[str, list[float]]
Meshes = dict[str, Mesh]  # by plan


class Counter:
    """The tokens that pass through a layer."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self.tokens = 0
        layer.register_forward_pre_hook(self.count)

    def count(self, _layer: torch.nn.Module, args: tuple) -> None:
        self.tokens += args[0].shape[1:-1].numel()

    def taken(self) -> int:
        tokens, self.tokens = self.tokens, 0
        return tokens


def largest_error(found: dict[str, Any], alone: dict[str, Any]) -> float:
    """Of all tensors; infinite where one is missing or has another shape."""
    pairs = [(ours, theirs) for name in alone for ours, theirs in zip(found[name], alone[name], strict=True)]
    assert pairs and found.keys() == alone.keys()
    return max(relative_error(ours, theirs) if ours.shape == theirs.shape else float("inf") for ours, theirs in pairs)


@torch.inference_mode()
def run_beside(name: str, case: HostCase, meshes: Meshes) -> Found:
    model, (args, kwargs) = case.build(), case.inputs()
    alone, found = model(*args, **{**kwargs}), {}
    for plan, mesh in meshes.items():
        parallel = ParallelModel(model, mesh, torch.float32)
        outputs = parallel.run(*case.inputs(), Forward(parallel.slot.every_patch()))
        parallel.remove()
        found[f"{name} | {plan}"] = [largest_error(outputs, alone)]
    return found


def run_inside(name: str, case: NetworkCase, meshes: Meshes) -> Found:
    model, network = case.host.build(), case.build()
    counter = Counter(network.get_submodule(case.counted))
    with torch.inference_mode():
        args, kwargs = case.inputs(network)
        alone = model(*args, **kwargs)
        tokens = counter.taken()
        args, kwargs = case.host.inputs()
        found = {name: [relative_error(model(*args, **kwargs), alone)]}
    for plan, mesh in meshes.items():
        parallel = ParallelModel(model, mesh, torch.float32)
        hooks = parallel.share_inside(network, torch.float32)
        outputs = parallel.run_calls([Call(*case.inputs(network))])
        hooks.close()
        parallel.remove()
        found[f"{name} | {plan}"] = [relative_error(each, alone) for each in outputs or ()] + [counter.taken() / tokens]
    return found


def on_ranks(plans: list[dict]) -> Found:
    here = [each for each in plans if ParallelPlan.from_json(each).world_size == dist.get_world_size()]
    built = {json.dumps(each): build_mesh(ParallelPlan.from_json(each), torch.device("cpu")) for each in here}
    found: Found = {}
    for name, case in CONTROLNETS.items():
        found |= run_beside(name, case, built)
    for name, case in NETWORKS.items():
        found |= run_inside(name, case, built)
    return found
