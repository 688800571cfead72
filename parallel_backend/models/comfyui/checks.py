"""Whether a plan, and what a spec says, fit one of ComfyUI's models; it may be on the meta device.

Read in ComfyUI's process too, which has no torch.distributed.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from ...axes import BATCH_AXES, TOKEN_AXES
from ...errors import PlanError
from ...plan import HOST, SHARED, ParallelPlan
from .spec import ALWAYS_WHOLE, BlockList, HostSpec, host_spec

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


def kv_heads_of(model: torch.nn.Module, spec: HostSpec) -> int | None:
    """The heads of keys and values in its blocks, if those may be fewer than the queries' and are sent as they are."""
    found = [
        (block, *each)
        for blocks in spec.blocks
        for block in modules_at(model, blocks.path)
        for each in blocks.kv_heads.items()
    ]
    return next((getattr(block.get_submodule(path), attribute) for block, path, attribute in found), None)


def read_size(model: torch.nn.Module, path: str) -> Any:
    value: Any = model
    for name in path.split("."):
        value = getattr(value, name)
    return value


def check_module(plan: ParallelPlan, model: torch.nn.Module) -> None:
    """Raises PlanError, naming the degree, if the model's class forbids the plan, or this ComfyUI's class is not the
    one that its spec is of."""
    name, spec = type(model).__name__, host_spec(type(model))
    if spec and spec.couples(model) and plan.ways(BATCH_AXES) > 1:
        raise PlanError(
            f"The rows of a batch cannot be computed apart in {name}: {spec.coupled}.",
            "Use cfg=1 and dp=1, and ulysses or ring.",
            *(axis for axis in BATCH_AXES if getattr(plan, axis) > 1),
        )
    check_fetched(plan, model, spec)
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
    if changed := changes_of(model):
        raise PlanError(
            f"This ComfyUI's {name} is not the one that is known here: {'; '.join(changed)}.",
            "Use cfg or dp in place of ulysses and ring, or the version of ComfyUI that the README names.",
            *shared,
        )
    blocks = sum(len(modules_at(model, row.path)) for row in spec.blocks)
    heads, pipefusion = sizes_of(model, spec).heads, spec.patches is not None
    plan.check_model(heads, blocks=blocks, pipefusion=pipefusion)


def check_fetched(plan: ParallelPlan, model: torch.nn.Module, spec: HostSpec | None) -> None:
    """Raises PlanError if weights are to be fetched block by block, and there is nobody to share them with, or which
    blocks the class has is not known."""
    plan.check_weights()
    if plan.weights not in (SHARED, HOST):
        return
    lists = spec.in_turn if spec else ()
    if not lists or any(lacking(model, lists, "")):
        raise PlanError(
            f"weights={plan.weights} has the weights wait block by block, and which blocks {type(model).__name__} has "
            "is not known here.",
            "Use weights=auto: what does not fit on a device then, ComfyUI's own partial loading keeps in RAM.",
            "weights",
        )


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


def changes_of(model: torch.nn.Module) -> list[str]:
    """How a model differs from the class that its spec is of, as where ComfyUI has changed; each as words."""
    spec = host_spec(type(model))
    return list(dict.fromkeys(differences(model, spec))) if spec else []


def differences(model: torch.nn.Module, spec: HostSpec) -> Iterator[str]:
    """What a spec relies on and the model does not have, and what its blocks take that the spec does not know."""
    sizes = (spec.heads, spec.width or spec.head_dim, spec.coupled_where, spec.patches[1] if spec.patches else "")
    for path in filter(None, sizes):
        try:
            read_size(model, path)
        except (AttributeError, IndexError):
            yield f"it has no {path}"
    for blocks in spec.cut:
        try:
            modules = modules_at(model, blocks.path)
        except AttributeError:
            yield f"it has no {blocks.path}"
            continue
        for block in modules:
            if not isinstance(vars(block).get("signature"), inspect.Signature):  # it stands where another stage has one
                yield from differences_in_block(block, blocks)


def differences_in_block(block: torch.nn.Module, blocks: BlockList) -> Iterator[str]:
    parameters = inspect.signature(block.forward).parameters.values()
    takes = {parameter.name for parameter in parameters if parameter.kind not in VARIABLE}
    if len(takes) == len(parameters):
        yield from (f"{blocks.path} has no argument {name}" for name in sorted(blocks.cut - takes))
    known = {ALWAYS_WHOLE, *blocks.cut, *blocks.whole, *blocks.refused}
    yield from (f"{blocks.path} has an argument {name}" for name in sorted(takes - known))
    yield from lacking(block, (*blocks.attention, *blocks.filled, *blocks.windows), f"{blocks.path}: ")
    for path, attribute in (*blocks.windows.items(), *blocks.kv_heads.items()):
        with contextlib.suppress(AttributeError):
            if not hasattr(block.get_submodule(path), attribute):
                yield f"{blocks.path}: it has no {path}.{attribute}"


def lacking(module: torch.nn.Module, paths: Iterable[str], where: str) -> Iterator[str]:
    """The submodules that are not there."""
    for path in paths:
        try:
            module.get_submodule(path)
        except AttributeError:
            yield f"{where}it has no {path}"
