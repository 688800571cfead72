"""`torchrun -m tests.support.ranks.cuda.branch_ranks FILE OUT`:
runs what asks for the kind of device on ranks with a labelled card each, and saves which places were told of a GPU.

FILE: a tiny Flux in GGUF.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from parallel_backend.errors import GroupError
from parallel_backend.groups.mesh import Axis
from parallel_backend.plan import ParallelPlan
from tests.support.labelled import branches
from tests.support.labelled.card import card
from tests.support.labelled.flex import flex_on_labelled
from tests.support.labelled.tensors import GPU, on_gpu
from tests.support.ranks.cuda.file_ranks import ADA, WHOLE, Case, of_case
from tests.support.ranks.leaving import leave
from worker.rank import job_groups
from worker.rank.job_groups import JobGroups


def receive_on(device: torch.device) -> None:
    """Sends and receives a large reply as on GPUs."""
    from worker.wire.job_channel import FrameMemory, HostChannel, RankChannel

    theirs, ours = socket.socketpair()
    with theirs, ours:
        memory = FrameMemory.create(token := "a" * 64)
        RankChannel(theirs, memory).send({}, {"latents": torch.ones(1 << 20, device=device)})
        HostChannel(ours, FrameMemory.open(memory.flow.address, token, writes=True)).receive(device)


def connect_ahead(groups: JobGroups) -> None:
    """Connects the cards twice before a plan is known: at first rank 1 fails, and all give that up."""
    connect = job_groups.world_axis

    def fail(*given: Any) -> Axis:
        axis = connect(*given)
        if dist.get_rank():
            raise GroupError("This card reaches no other.")
        return axis

    with patch.object(job_groups, "world_axis", fail):
        groups.connect_ahead(None)
    assert not groups.worlds
    groups.connect_ahead(None)
    with patch.object(job_groups, "world_axis", fail):
        mesh = groups.mesh_of(ParallelPlan(ulysses=2))
    assert mesh["ulysses"].group is groups.whole().group, "an axis over all ranks has been connected"


def main(file: str, out: str) -> None:
    from parallel_backend.__main__ import dtype_of, machine_of
    from parallel_backend.device import name_of, peak_bytes, to_host, warm_up
    from parallel_backend.groups.timeline import Timeline
    from parallel_backend.library import device_of, share_random_state
    from parallel_backend.weights.parking import Parking
    from worker.rank.memory.device_memory import DeviceMemory
    from worker.rank.memory.release import release_memory
    from worker.rank.state import RankState

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with on_gpu() as watch, card(watch.memory, WHOLE, ADA) as there:
        from tests.support.ranks.cuda.labelled_ranks import with_more
        from tests.support.ranks.cuda.libraries import Bench, of_diffusers
        from tests.support.ranks.cuda.sparse_ranks import run_steps

        told = branches.watch()
        groups = JobGroups(GPU, Timeline(GPU))
        connect_ahead(groups)
        ring, stages = ParallelPlan(ring=2), ParallelPlan(pipefusion=2)
        for plan in (ring, stages):
            groups.mesh_of(plan)
        for name, plan in (("hunyuanvideo", ring), ("flux-dev", stages)):
            of_diffusers(Bench(GPU, Path(out).parent, partial(with_more, watch)), name, plan, "fp32")
        with flex_on_labelled():
            run_steps(ParallelPlan(ulysses=2, sparse="radial"), GPU)
        of_case(Case("gguf", file, "float32", "float32", {"ulysses": 2}, 0.75), watch, there)
        name_of(GPU)
        peak_bytes(GPU)
        DeviceMemory.now(GPU)
        assert RankState(GPU).memory()["total"] == DeviceMemory.now(GPU).total
        release_memory(GPU)
        share_random_state(GPU)
        device_of(None, torch.ones(1, device=GPU))  # pyright: ignore[reportArgumentType] (of the model, the device)
        receive_on(GPU)
        to_host([torch.ones(1, device=GPU)])
        warm_up(GPU)
        dtype_of(Namespace(dtype=None), GPU)
        with patch.dict(os.environ, WORLD_SIZE="1"):
            machine_of(None, ParallelPlan(), GPU, torch.bfloat16)
        parking = Parking(torch.nn.Module(), GPU)  # without weights: labelled ones have no storages to move
        parking.copy()
        parking.free_device()
        parking.restore()
        if groups.can_be_cut:
            groups.cut(groups.job)
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(sorted(told)))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
