"""`torchrun -m tests.support.ranks.between_ranks ROWS OUT`:
runs ComfyUI's own classes with code between their blocks that needs all tokens, under plans and plain. Saves by row
and plan the relative error on rank 0, what the code changes, and the share of the calls of blocks that ranks share.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.models import spec_named
from parallel_backend.models.checks import modules_at
from parallel_backend.models.spec import ModelSpec
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.forward import ForwardSlot
from tests.support.cases.host import CASES
from tests.support.cases.references import relative_error
from tests.support.ranks.host_ranks import calls_of, flat
from tests.support.ranks.leaving import leave


def change(output: Any, given: list[torch.Tensor]) -> Any:
    """What the code makes of a block's output and of the tokens that the block was called with. It decides by a value
    that depends on all tokens."""
    if isinstance(output, (tuple, list)):
        return type(output)(change(each, given) for each in output)
    if not isinstance(output, torch.Tensor):
        return output
    same = [each for each in given if each.shape == output.shape]
    mean = output.mean()
    more = sum((each.flip(1) for each in same), torch.zeros_like(output))
    return output * 0.9 + 0.05 * more.tanh() + (mean.sin() if mean.item() > 0 else -0.1 * mean)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (tuple, list)):
            yield from tensors_in(each)


class Around(torch.nn.Module):
    """Takes a block's place, and calls it."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def __getattr__(self, name: str) -> Any:
        own = vars(self)["_modules"]["block"]
        return own if name == "block" else getattr(own, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return change(self.block(*args, **kwargs), list(tensors_in([*args, *kwargs.values()])))


@contextmanager
def code_between(model: torch.nn.Module, spec: ModelSpec) -> Iterator[None]:
    """While entered, all blocks are within such code."""
    lists = [blocks.path for blocks in spec.blocks if not blocks.interleaved and "*" not in blocks.path]
    owners = [model.get_submodule(path) for path in lists]
    blocks = [(owner, name, block) for owner in owners for name, block in owner.named_children()]
    for owner, name, block in blocks:
        setattr(owner, name, Around(block))
    try:
        yield
    finally:
        for owner, name, block in blocks:
            setattr(owner, name, block)


@contextmanager
def other_roundings(is_on: bool) -> Iterator[None]:
    """While entered, this rank's device reads other values from tensors than the first rank's."""
    own: Callable[[torch.Tensor], Any] = torch.Tensor.item
    if is_on and dist.get_rank():
        torch.Tensor.item = lambda tensor: -own(tensor)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        if "item" in vars(torch.Tensor):
            del torch.Tensor.item


def run(row: str, plans: list[dict[str, Any]]) -> Iterator[tuple[str, list[float]]]:
    case = CASES[row]
    model, spec = case.build(), spec_named(case.model_class)
    assert spec
    plain: list[torch.Tensor] = []
    with torch.inference_mode():
        for changed in (False, True):
            ((args, kwargs, *_),) = calls_of(case, 1)
            if changed:
                with code_between(model, spec):
                    plain.append(flat(model(*args, **kwargs)))
            else:
                plain.append(flat(model(*args, **kwargs)))
    for degrees in plans:
        plan = ParallelPlan.from_json(degrees)
        module = ParallelModel(model, build_mesh(plan, torch.device("cpu")), torch.float32)
        shared: list[bool] = []

        def note(*_: object, slot: ForwardSlot = module.slot, shared: list[bool] = shared) -> None:
            shared.append(slot.forward.in_block)

        for blocks in spec.blocks:
            for block in modules_at(model, blocks.path):
                module.hooks.before(block, note)
        try:
            with other_roundings(row == "flux-dev"), module.showing_whole(True), code_between(model, spec):
                outputs = module.run_calls(calls_of(case, 1))
        finally:
            module.remove()
        if outputs:
            error = relative_error(flat(outputs[0]), plain[1])
            changed = relative_error(plain[0], plain[1])
            yield f"{row} | {json.dumps(degrees)}", [error, changed, sum(shared) / len(shared)]


def main(rows_path: str, out_path: str) -> None:
    """ROWS: by row in CASES, its plans."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = dict(each for row, plans in json.loads(Path(rows_path).read_text()).items() for each in run(row, plans))
    if dist.get_rank() == 0:
        Path(out_path).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
