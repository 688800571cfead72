"""`host.between_ranks ROWS`:
runs ComfyUI's own classes with code that needs all tokens, between their blocks or at a UNet's places, under a plan and
plain. Returns by row the relative error on rank 0, what the code changes, and the share of the calls of blocks that
ranks share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.models import spec_named
from parallel_backend.models.bands import Place
from parallel_backend.models.checks import modules_at
from parallel_backend.models.comfyui.unet import BANDS
from parallel_backend.models.spec import ALWAYS_WHOLE, ModelSpec
from parallel_backend.parallel_model import ParallelModel, RunOptions
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.forward import NodeCode
from tests.support.cases.host import CASES, HostCase
from tests.support.cases.references import relative_error
from tests.support.ranks.host_ranks import flat, steps_of


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


class Around(torch.nn.Module):
    """Takes a block's place, and calls it."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def __getattr__(self, name: str) -> Any:
        own = vars(self)["_modules"]["block"]
        return own if name == "block" else getattr(own, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves = tree_leaves((args, kwargs))
        return change(self.block(*args, **kwargs), [each for each in leaves if isinstance(each, torch.Tensor)])


def function_at(place: Place, is_patch: bool) -> Callable[..., Any]:
    """A function for a place in a UNet. It reads the shape of the picture, and writes into what it is given."""

    def run(*given: Any) -> Any:
        *args, options = given
        pixels = args[: place.given]
        found = [change(each, pixels) * (1 + options["original_shape"][2] / 100) for each in pixels[: place.returned]]
        found[0] = pixels[0].mul_(0.5).add_(0.5 * found[0])
        return (*found, *args[place.returned :]) if len(args) > 1 and is_patch else found[0]

    return run


def functions_inside() -> dict[str, Any]:
    """Functions at all places of a UNet where they can see the whole picture."""
    keys = [("middle", 0), *((part, index) for part in ("input", "output") for index in range(12))]
    return {
        "patches": {name: [function_at(place, True)] for name, place in BANDS.places["patches"].items()},
        "patches_replace": {
            name: dict.fromkeys(keys, function_at(place, False))
            for name, place in BANDS.places["patches_replace"].items()
        },
    }


def calls_by_step(case: HostCase, spec: ModelSpec, changed: bool) -> list[Call]:
    """The case's call in each step."""
    calls = [call for (call,) in steps_of(case)]
    if not changed or not spec.bands:
        return calls
    return [call._replace(kwargs={**call.kwargs, ALWAYS_WHOLE: functions_inside()}) for call in calls]


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
def other_roundings() -> Iterator[None]:
    """While entered, this rank's device reads other values from tensors than the first rank's."""
    own: Callable[[torch.Tensor], Any] = torch.Tensor.item
    if dist.get_rank():
        torch.Tensor.item = lambda tensor: -own(tensor)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        if "item" in vars(torch.Tensor):
            del torch.Tensor.item


def by_itself(model: torch.nn.Module, spec: ModelSpec, case: HostCase, changed: bool) -> torch.Tensor:
    """What the model gives in one process, in all steps."""
    if spec.drops:
        getattr(model, spec.drops)()
    with torch.inference_mode(), code_between(model, spec) if changed else nullcontext():
        return torch.cat([flat(model(*args, **kwargs)) for args, kwargs in calls_by_step(case, spec, changed)])


def run(row: str, plan: ParallelPlan) -> tuple[float, float, float] | None:
    case = CASES[row]
    model, spec = case.build(), spec_named(case.model_class)
    assert spec
    alone, wanted = (by_itself(model, spec, case, changed) for changed in (False, True))
    module = ParallelModel(model, build_mesh(plan, torch.device("cpu")), torch.float32)
    shared: list[bool] = []
    for blocks in spec.blocks:
        for block in modules_at(model, blocks.path):
            module.hooks.before(block, lambda *_: shared.append(not module.slot.has_all_tokens))
    if spec.bands:
        module.hooks.before(model, lambda *_: shared.append(not module.slot.has_all_tokens))
    with other_roundings(), module.running_with(RunOptions(NodeCode.BETWEEN_BLOCKS)), code_between(model, spec):
        outputs = [module.run_calls([call]) for call in calls_by_step(case, spec, True)]
    found = [flat(each) for of_step in outputs for each in of_step or ()]
    if not found:
        return None
    error, changed = (relative_error(each, wanted) for each in (torch.cat(found), alone))
    return error, changed, sum(shared) / len(shared)


def on_ranks(rows: dict[str, dict]) -> dict[str, Any]:
    """ROWS: by row in CASES, its plan."""
    return {row: run(row, ParallelPlan.from_json(degrees)) for row, degrees in rows.items()}
