"""`torchrun -m tests.support.ranks.networks.inner_network_ranks PLANS OUT`:
runs models with networks inside of them under plans, and saves as JSON: by row and plan, the relative error on rank 0,
and the largest share of the network's tokens that a rank computes; by row, what the network changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from tests.support.cases.host.networks import NETWORKS
from tests.support.cases.references import relative_error
from tests.support.ranks import host_ranks  # noqa: F401 (imports ComfyUI)
from tests.support.ranks.leaving import leave


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


def main(plans: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, list[float]] = {}
    degrees = [each for each in json.loads(plans) if ParallelPlan.from_json(each).world_size == dist.get_world_size()]
    meshes = [build_mesh(ParallelPlan.from_json(each), torch.device("cpu")) for each in degrees]
    for name, case in NETWORKS.items():
        model, network = case.host.build(), case.build()
        counter = Counter(network.get_submodule(case.counted))
        with torch.inference_mode():
            args, kwargs = case.inputs(network)
            alone = model(*args, **kwargs)
            tokens = counter.taken()
            args, kwargs = case.host.inputs()
            found[name] = [relative_error(model(*args, **kwargs), alone)]
        for plan, mesh in zip(degrees, meshes, strict=True):
            parallel = ParallelModel(model, mesh, torch.float32)
            hooks = parallel.share_inside(network, torch.float32)
            outputs = parallel.run_calls([Call(*case.inputs(network))])
            hooks.remove()
            parallel.remove()
            share = torch.tensor(counter.taken() / tokens)
            dist.all_reduce(share, dist.ReduceOp.MAX)
            if outputs:
                found[f"{name} | {json.dumps(plan)}"] = [relative_error(outputs[0], alone), float(share)]
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
