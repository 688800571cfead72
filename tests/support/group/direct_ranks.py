"""What places a model's weights in ranks that no request came to: a job's part in that, with nothing to agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.groups.timeline import SILENT
from parallel_backend.weights.loading import go_on
from worker.rank.job_groups import JobGroups


class DirectRanks:
    """All ranks of the default group."""

    def __init__(self, device: torch.device) -> None:
        self.groups = JobGroups(device, SILENT)
        self.control_group: Any = None

    def alone(self, action: Callable[[], Any]) -> Any:
        return action()

    def together(self, action: Callable[[], Any]) -> Any:
        result = action()
        dist.barrier()
        return result

    def check(self) -> None:
        go_on()
