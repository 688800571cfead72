"""`cuda.ahead_ranks`: labelled cards are connected twice before a plan is known. At first one of them fails."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from parallel_backend.errors import GroupError
from parallel_backend.groups.mesh import Axis
from parallel_backend.groups.timeline import Timeline
from parallel_backend.plan import ParallelPlan
from tests.support.labelled.tensors import GPU, on_gpu
from worker.rank import job_groups


def on_ranks() -> None:
    connect = job_groups.world_axis

    def fail(*given: Any) -> Axis:
        axis = connect(*given)
        if dist.get_rank():
            raise GroupError("This card reaches no other.")
        return axis

    with on_gpu(counts_memory=False):
        groups = job_groups.JobGroups(GPU, Timeline(GPU))
        with patch.object(job_groups, "world_axis", fail):
            groups.connect_ahead(None)
        assert not groups.worlds
        groups.connect_ahead(None)
        with patch.object(job_groups, "world_axis", fail):
            mesh = groups.mesh_of(ParallelPlan(ulysses=2))
        assert mesh["ulysses"].group is groups.whole().group, "an axis over all ranks has been connected"
