"""A rank that knows one operation more than the pack's, by a row in the table and a handler."""

from __future__ import annotations

import torch

from worker.rank.job import Job
from worker.rank.operations import Operations
from worker.rank.serving import run
from worker.wire.operations import OPERATIONS, Operation
from worker.wire.tensors import Tensors

POLISH = Operation(
    "polish", "polishing the weights", {"bytes": int}, ("cloth",), "cloth", moves_weights=True, drops_model=True
)


def polish(job: Job, _tensors: Tensors) -> None:
    """Allocates as many bytes as it is told."""
    job.without_collectives(lambda: torch.empty(job.header["bytes"], dtype=torch.uint8))


if __name__ == "__main__":
    OPERATIONS[POLISH.name] = POLISH
    setattr(Operations, POLISH.name, staticmethod(polish))
    run()
