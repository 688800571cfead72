"""Whether a plan, and what a spec says, fit one of ComfyUI's models; it may be on the meta device.

Read in ComfyUI's process too, which has no torch.distributed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ...axes import BATCH_AXES, TOKEN_AXES
from ...errors import PlanError
from ...plan import ParallelPlan
from .spec import HostSpec, host_spec

OWN_ATTENTION = ("auto", "native")  # of a plan, where attention is left to ComfyUI
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class HostSizes(NamedTuple):
    """Of a model's attention: the heads, and the dim of each."""

    heads: int
    head_dim: int


SKIP = "skip"  # the argument of a block that gets what an earlier one returned


def modules_at(model: torch.nn.Module, path: str) -> list[torch.nn.Module]:
    """The blocks of a list, or the single one that is there."""
    found = model.get_submodule(path)
    return list(found.children()) if isinstance(found, (torch.nn.ModuleList, torch.nn.ModuleDict)) else [found]


def sizes_of(model: torch.nn.Module, spec: HostSpec) -> HostSizes:
    """The sizes that bound a plan, read off the model, which may be on the meta device."""
    heads, size = (read_size(model, path) for path in (spec.heads, spec.width or spec.head_dim))
    return HostSizes(heads, size // heads if spec.width else size)


def read_size(model: torch.nn.Module, path: str) -> Any:
    value: Any = model
    for name in path.split("."):
        value = getattr(value, name)
    return value


def check_module(plan: ParallelPlan, model: torch.nn.Module) -> None:
    """Raises PlanError, naming the degree, if the model's class forbids the plan, or this ComfyUI's class is not the
    one that its spec is of."""
    name, spec = type(model).__name__, host_spec(type(model))
    if plan.tp > 1:
        raise PlanError(
            f"tp={plan.tp} is for the models of diffusers folders, and this file runs as ComfyUI's own {name}.",
            f"Use tp=1, and ring={plan.tp} or ulysses={plan.tp} in its place.",
            "tp",
        )
    if spec and spec.couples(model) and plan.ways(BATCH_AXES) > 1:
        raise PlanError(
            f"The rows of a batch cannot be computed apart in {name}: {spec.coupled}.",
            "Use cfg=1 and dp=1, and ulysses or ring.",
            *(axis for axis in BATCH_AXES if getattr(plan, axis) > 1),
        )
    if plan.pipefusion * plan.patch_count > 1:
        check_stages(plan, model, spec)
    shared = [axis for axis in TOKEN_AXES if getattr(plan, axis) > 1]
    if not shared and plan.pipefusion * plan.patch_count == 1:
        if plan.attention not in OWN_ATTENTION:
            raise PlanError(
                f"attention={plan.attention} is for shared tokens; where none are, {name} attends as ComfyUI does.",
                "Use attention=auto, and start ComfyUI with the attention that you want.",
                "attention",
            )
        return
    if spec is None:
        raise PlanError(
            f"{shared[0]}={getattr(plan, shared[0])} is not there for {name} yet: how its tokens can be shared is not "
            "known here.",
            f"Use {shared[0]}=1, and cfg or dp in its place.",
            *shared,
        )
    if spec.unshared:
        raise PlanError(
            f"The tokens of {name} cannot be shared: {spec.unshared}.",
            f"Use {shared[0]}=1" + ("." if spec.couples(model) else ", and cfg or dp in its place."),
            *shared,
        )
    if changed := list(missing_from(model, spec)):
        raise PlanError(
            f"This ComfyUI's {name} is not the one that is known here: it has no {', '.join(changed)}.",
            "Use cfg or dp in place of ulysses and ring, or the version of ComfyUI that the README names.",
            *shared,
        )
    blocks = sum(len(modules_at(model, row.path)) for row in spec.blocks)
    plan.check_model(heads=sizes_of(model, spec).heads, blocks=blocks, pipefusion=spec.patches is not None)


def check_stages(plan: ParallelPlan, model: torch.nn.Module, spec: HostSpec | None) -> None:
    """Raises PlanError if the class's blocks cannot be shared out over pipeline stages."""
    reason = "how they run is not known here" if spec is None else spec.unstaged or spec.unshared
    if reason:
        degree = max(plan.pipefusion, 2)
        raise PlanError(
            f"The blocks of {type(model).__name__} cannot be shared out over pipeline stages: {reason}.",
            f"Use pipefusion=1 and patches=0, and ring={degree} or ulysses={degree}, or cfg or dp, in its place.",
            "pipefusion",
            "patches",
        )


def patch_of(model: torch.nn.Module, spec: HostSpec, dims: int) -> tuple[int, ...]:
    """What of the latents becomes a token, over their last dims: (H, W), or (F, H, W)."""
    if spec.patches is None:
        return (1,) * dims
    size = read_size(model, spec.patches[1])
    sizes = (size,) * 2 if isinstance(size, int) else tuple(size)
    return ((1,) * dims + sizes)[-dims:]


def missing_from(model: torch.nn.Module, spec: HostSpec) -> Iterator[str]:
    """What a spec relies on and the model does not have, as where ComfyUI has changed."""
    for blocks in spec.blocks:
        try:
            modules = modules_at(model, blocks.path)
        except AttributeError:
            yield blocks.path
            continue
        for block in modules[:1]:
            parameters = inspect.signature(block.forward).parameters.values()
            takes_any = any(parameter.kind in VARIABLE for parameter in parameters)
            named = {*blocks.tokens, *blocks.sides, *blocks.frames, *blocks.ranges, *blocks.places, *blocks.counts}
            for name in sorted(named - {parameter.name for parameter in parameters}):
                if not takes_any:
                    yield f"{blocks.path}: the argument {name}"
            for path in (*blocks.attention, *blocks.filled):
                try:
                    block.get_submodule(path)
                except AttributeError:
                    yield f"{blocks.path}: {path}"
