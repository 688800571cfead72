"""`python -m tests.support.ranks.cuda.host_time`:
prints how many times as long the host takes for a forward under tensor parallelism in inference mode as in the mode
that the engine chooses. The other rank is pretended: its collectives return at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from parallel_backend.groups import mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.forward import Forward
from parallel_backend.transformer import ParallelTransformer
from tests.support.cases.families import FAMILIES

TIMES = 4


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    family = FAMILIES["flux-dev"]
    latents, timestep, conditions = family.inputs(1, 16, 16)
    with patch.object(mesh, "shake_hands"):
        built = mesh.build_mesh(ParallelPlan(tp=2), torch.device("cpu"))
    transformer = ParallelTransformer(family.build(), built)

    def seconds(mode: Callable[[], AbstractContextManager]) -> float:
        taken = []
        for _ in range(TIMES):
            with mode():
                began = time.process_time()
                transformer.forward(latents, timestep, conditions, built["batch"], Forward([0]))
                taken.append(time.process_time() - began)
        return min(taken)

    print(seconds(torch.inference_mode) / seconds(built.without_autograd))


if __name__ == "__main__":
    main()
