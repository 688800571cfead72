"""`torchrun -m tests.support.ranks.weights.memory_ranks CASES OUT`:
loads models; each rank says what it holds and how much it has read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import diffusers
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.elastic.multiprocessing.errors import record

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights import loading
from tests.support.ranks.leaving import leave


class CountingFile:
    """Stands in for safetensors' open file, and for a slice of it, and counts the bytes of every tensor it returns."""

    read = 0

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __enter__(self) -> CountingFile:
        return CountingFile(self.wrapped.__enter__())

    def __exit__(self, *error: object) -> None:
        self.wrapped.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if name not in ("keys", "get_shape"):
            raise AttributeError(f"{name} is not counted")
        return getattr(self.wrapped, name)

    def get_slice(self, name: str) -> CountingFile:
        return CountingFile(self.wrapped.get_slice(name))

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.count(self.wrapped.get_tensor(name))

    def __getitem__(self, index: object) -> torch.Tensor:
        return self.count(self.wrapped[index])

    @staticmethod
    def count(tensor: torch.Tensor) -> torch.Tensor:
        CountingFile.read += tensor.nbytes
        return tensor


@record
def main(cases_path: str, out_path: str) -> None:
    """Cases are JSON objects of name, plan and source; OUT/NAME.RANK.safetensors gets the parameters as held."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loading.safe_open = lambda *args, **kwargs: CountingFile(safe_open(*args, **kwargs))
    for case in json.loads(Path(cases_path).read_text()):
        CountingFile.read = 0
        mesh = build_mesh(ParallelPlan.from_json(case["plan"]), torch.device("cpu"))
        model = DiffusersModel.load(loading.ModelSource(**case["source"]), mesh).model
        held = {name: value.clone() for name, value in model.state_dict().items()}
        metadata = {"bytes_read": str(CountingFile.read)}
        save_file(held, f"{out_path}/{case['name']}.{dist.get_rank()}.safetensors", metadata)
    leave()


if __name__ == "__main__":
    assert diffusers  # imported here, so that the ranks do not import it one after the other later
    main(*sys.argv[1:])
