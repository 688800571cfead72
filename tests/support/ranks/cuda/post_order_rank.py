"""`cuda.post_order_rank PLANS OUT`:
samples under PipeFusion and saves, by rank and plan, the order in which sends and receives were posted and waited for.

PLANS: as JSON. Each entry of a log is [what, the other rank, which of the messages between the two].
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import diffusers
import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.stepper import Stepper
from tests.support.cases.families import FAMILIES
from tests.support.family_model import Denoiser, FamilyModel

STEPS = 5


class Logged:
    """A receive whose wait is noted."""

    def __init__(self, work: Any, log: list, entry: tuple) -> None:
        self.work, self.log, self.entry = work, log, entry

    def wait(self) -> bool:
        self.log.append(("wait", *self.entry))
        return self.work.wait()


def on_ranks(plans: str, out: str) -> None:
    irecv, isend = dist.irecv, dist.isend
    found = []
    for degrees in json.loads(plans):
        log: list[tuple] = []
        counts: Counter = Counter()

        def entry(what: str, other: int, counts: Counter = counts) -> tuple[int, int]:
            counts[what, other] += 1
            return other, counts[what, other]

        def receive(
            tensor: torch.Tensor, source: int, group: Any = None, log: list = log, entry: Any = entry
        ) -> Logged:
            own = entry("post", source)
            log.append(("post", *own))
            return Logged(irecv(tensor, source, group=group), log, own)

        def send(tensor: torch.Tensor, to: int, group: Any = None, log: list = log, entry: Any = entry) -> Any:
            log.append(("send", *entry("send", to)))
            return isend(tensor, to, group=group)

        family = FAMILIES["flux-dev"]
        latents, _, conditions = family.inputs(1, 16, 16)
        mesh = build_mesh(ParallelPlan(**degrees), torch.device("cpu"), link_groups=True)
        transformer = FamilyModel(family.build(), mesh)
        stepper = Stepper.prepare(diffusers.FlowMatchEulerDiscreteScheduler(), STEPS, device=mesh.device)
        negative = {name: -value for name, value in conditions.items()} if degrees.get("patches", 1) % 2 else None
        with patch.object(dist, "irecv", receive), patch.object(dist, "isend", send):
            Denoiser(transformer).sample(latents, stepper, conditions, negative, 3.0)
        mesh.close()
        found.append(log)
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(found))
