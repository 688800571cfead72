"""Checks whether a plan, and what a spec says, fit a model. The model may be on the meta device.

Processes without torch.distributed import this, too.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch

from ..axes import BATCH_AXES, TOKEN_AXES
from ..errors import PlanError
from ..plan import AUTO, HOST, OFF, ON, SHARED, ParallelPlan
from .attention_sizes import AttentionSizes, differences_in_attention, read_sizes
from .bands import VARIABLE, differences_in_bands, lacking
from .spec import ALWAYS_WHOLE, BlockList, ModelSpec, Streams, signature_of, spec_of

OWN_ATTENTION = ("auto", "native")  # values of a plan under which a model may keep its own attention


def modules_at(model: torch.nn.Module, path: str) -> list[torch.nn.Module]:
    """Returns the blocks of the list at a path, or the blocks there. Raises AttributeError if there are none."""
    if "*" in path:
        pattern = re.escape(path).replace(r"\*", "[^.]*")
        several = [module for name, module in model.named_modules() if re.fullmatch(pattern, name)]
        if not several:
            raise AttributeError(path)
        return several
    found = model.get_submodule(path)
    return list(found.children()) if isinstance(found, (torch.nn.ModuleList, torch.nn.ModuleDict)) else [found]


def attention_sizes_of(model: torch.nn.Module, spec: ModelSpec) -> AttentionSizes:
    """Reads the sizes that limit a plan off the model, which may be on the meta device. One head of no dims if it has
    none."""
    if spec.bands:
        return AttentionSizes(*spec.bands.attention_sizes(model))
    found = list(attention_sizes(model, spec))
    return found[0]._replace(head_dim=max(each.head_dim for each in found)) if found else AttentionSizes(1, 0)


def attention_sizes(model: torch.nn.Module, spec: ModelSpec) -> Iterator[AttentionSizes]:
    """Reads the sizes of attention off the first block of each list that is here."""
    for blocks in spec.blocks:
        with contextlib.suppress(AttributeError, StopIteration):
            block = next(each for each in modules_at(model, blocks.path) if not is_stand_in(each))
            modules = [block.get_submodule(path) for path in attention_paths(block, blocks)]
            yield from filter(None, map(read_sizes, modules))


def check_module(plan: ParallelPlan, model: torch.nn.Module) -> None:
    """Raises PlanError, naming the degree, if the model's class forbids the plan or differs from its spec."""
    name, spec = type(model).__name__, spec_of(type(model))
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
        if plan.attention not in OWN_ATTENTION and (spec is None or not spec.is_diffusers):
            raise PlanError(
                f"attention={plan.attention} needs shared tokens. Without them, {name} attends as ComfyUI does.",
                "Use attention=auto, and start ComfyUI with the attention that you want.",
                "attention",
            )
        return
    check_shared(plan, model, spec, shared)
    assert spec
    blocks = sum(len(modules_at(model, each.path)) for each in spec.blocks)
    plan.check_model(attention_sizes_of(model, spec).heads, blocks=blocks or None, pipefusion=bool(spec.image))


def check_shared(plan: ParallelPlan, model: torch.nn.Module, spec: ModelSpec | None, shared: list[str]) -> None:
    """Raises PlanError if the model's tokens cannot be shared. shared: the plan's axes that would share them."""
    name = type(model).__name__
    if spec is None:
        raise PlanError(
            f"{shared[0]}={getattr(plan, shared[0])} does not work for {name} yet: the pack does not know how to share "
            "its tokens.",
            f"Use {shared[0]}=1, and cfg or dp in its place.",
            *shared,
        )
    if shared and spec.unshared:
        raise PlanError(
            f"The tokens of {name} cannot be shared: {spec.unshared}.",
            f"Use {shared[0]}=1" + ("." if spec.couples(model) else ", and cfg or dp in its place."),
            *shared,
        )
    if spec.bands and plan.compile == ON:
        raise PlanError(
            f"compile={ON} does not work for {name} with {shared[0]}={getattr(plan, shared[0])}: ranks exchange rows "
            "inside of its layers.",
            f"Use compile={OFF} or {AUTO}.",
            "compile",
        )
    check_class(model, spec, shared)


def check_class(model: torch.nn.Module, spec: ModelSpec, shared: list[str]) -> None:
    """Raises PlanError if a model's class is not as its spec says. shared: the plan's axes that would share tokens."""
    if changed := list_spec_mismatches(model):
        known = ("diffusers", "requirements.txt") if spec.is_diffusers else ("ComfyUI", "the README")
        own = " For a spec of your own, see parallel_backend/models/README.md." if spec.is_diffusers else ""
        raise PlanError(
            f"This {known[0]}'s {type(model).__name__} is not the one that is known here: {'; '.join(changed)}.",
            f"Use cfg or dp in place of ulysses and ring, or the version of {known[0]} that {known[1]} names.{own}",
            *shared,
        )


def check_fetched(plan: ParallelPlan, model: torch.nn.Module, spec: ModelSpec | None) -> None:
    """Raises PlanError if weights are to be fetched, but no rank shares them or the class's blocks are unknown."""
    plan.check_weights()
    if plan.weights not in (SHARED, HOST):
        return
    lists = spec.paths(model) if spec else ()
    if not lists or any(lacking(model, lists, "")):
        raise PlanError(
            f"weights={plan.weights} fetches weights block by block, but the blocks of {type(model).__name__} are not "
            "known here.",
            "Use weights=auto."
            if spec is None or spec.is_diffusers
            else "Use weights=auto. ComfyUI's own partial loading then keeps in RAM what does not fit.",
            "weights",
        )


def check_stages(plan: ParallelPlan, model: torch.nn.Module, spec: ModelSpec | None) -> None:
    """Raises PlanError if the class's blocks cannot be split into pipeline stages."""
    reason = "the pack does not know how they run"
    if spec is not None:
        reason = spec.unstaged or ("" if spec.blocks else spec.unshared)
    if reason:
        degree = max(plan.pipefusion, 2)
        raise PlanError(
            f"The blocks of {type(model).__name__} cannot be shared out over pipeline stages: {reason}.",
            f"Use pipefusion=1 and patches=0, and ring={degree} or ulysses={degree}, or cfg or dp, in its place.",
            "pipefusion",
            "patches",
        )


def patch_size_of(model: torch.nn.Module, spec: ModelSpec, dims: int) -> tuple[int, ...]:
    """Returns the part of the latents that becomes a token, over their last dims: (H, W), or (F, H, W). All 1 for
    diffusers' classes, whose pipelines know it."""
    size = 1 if spec.is_diffusers else getattr(getattr(model, "patchifier", model), "patch_size", 1)
    sizes = (size,) * 2 if isinstance(size, int) else tuple(size)
    return ((1,) * dims + sizes)[-dims:]


def count_tokens(model: torch.nn.Module, latents: Sequence[int]) -> int:
    """Returns the number of tokens of latents of this shape (B, C, …). 0 if the class has no spec."""
    spec = spec_of(type(model))
    if spec is None:
        return 0
    sides = patch_size_of(model, spec, len(latents) - 2)
    return latents[0] * math.prod(-(-size // side) for size, side in zip(latents[2:], sides, strict=False))


def list_spec_mismatches(model: torch.nn.Module) -> list[str]:
    """Lists in words how a model differs from its spec's class, for example because its library has changed."""
    spec = spec_of(type(model))
    return list(dict.fromkeys(differences(model, spec))) if spec else []


def differences(model: torch.nn.Module, spec: ModelSpec) -> Iterator[str]:
    """Lists what the spec relies on and the model lacks, and which block arguments the spec does not know."""
    paths = (spec.drops, *([spec.bands.levels] if spec.bands else []))
    yield from (f"it has no {path}" for path in filter(None, paths) if not has_size(model, path))
    sizes = next(attention_sizes(model, spec), None)
    if spec.bands and not spec.unshared:
        yield from differences_in_bands(model, spec.bands)
    for blocks in spec.sharded:
        try:
            modules = modules_at(model, blocks.path)
        except AttributeError:
            yield f"it has no {blocks.path}"
            continue
        for block in modules:
            if not is_stand_in(block):
                yield from differences_in_block(block, blocks)
                yield from differences_in_attention(block, attention_paths(block, blocks), blocks.path, sizes)
        if spec.inside is None:  # else the other streams are the model's
            yield from unknown_streams(blocks)


def unknown_streams(blocks: BlockList) -> Iterator[str]:
    """Lists the streams that other fields name and `tokens` lacks. A rank would see all of their tokens."""
    fields: dict[str, Any] = {"returns": blocks.returns, **blocks.attention}
    fields |= {name: side[-1] for name, side in blocks.sides.items()}
    known = set().union(*map(stream_names, blocks.tokens.values()))
    for stream in sorted(set().union(*map(stream_names, fields.values())) - known):
        where = ", ".join(name or "the block" for name, streams in fields.items() if stream in stream_names(streams))
        yield f"no argument in `tokens` of {blocks.path} has the stream {stream}, which {where} has"


def stream_names(streams: Streams) -> set[str]:
    """Returns the names of the single streams."""
    each = filter(None, streams if isinstance(streams, tuple) else (streams,))
    return {name for item in each for name in item.replace("|", "+").split("+")}


def has_size(model: torch.nn.Module, path: str) -> bool:
    try:
        attrgetter(path)(model)
    except (AttributeError, IndexError):
        return False
    return True


def is_stand_in(block: torch.nn.Module) -> bool:
    """Whether a module replaces another stage's block."""
    return isinstance(vars(block).get("signature"), inspect.Signature)


def attention_paths(block: torch.nn.Module, blocks: BlockList) -> list[str]:
    """Returns the submodules of a block in which tokens attend to tokens: the spec's, except those that are None in
    it."""
    return [path for path in blocks.attention if not path or getattr(block, path, path) is not None]


def differences_in_block(block: torch.nn.Module, blocks: BlockList) -> Iterator[str]:
    parameters = signature_of(block).parameters.values()
    takes = {parameter.name for parameter in parameters if parameter.kind not in VARIABLE}
    if len(takes) == len(parameters):
        found = [streams for name, streams in blocks.tokens.items() if name in takes]
        named = [name for name in blocks.sharded if not name.isdigit()]  # the others are of `*args`
        lacks = {name for name in named if blocks.tokens.get(name) not in found} - takes
        yield from (f"{blocks.path} has no argument {name}" for name in sorted(lacks))
    known = {ALWAYS_WHOLE, *blocks.sharded, *blocks.whole, *blocks.refused}
    yield from (f"{blocks.path} has an argument {name}, which its spec does not list" for name in sorted(takes - known))
    yield from lacking(block, (*attention_paths(block, blocks), *blocks.full_length), f"{blocks.path}: ")
    for path, attribute in blocks.local_masks.items():
        with contextlib.suppress(AttributeError):
            if attribute and not hasattr(block.get_submodule(path), attribute):
                yield f"{blocks.path}: it has no {path}.{attribute}"
