"""What nodes ask for in the options of a call, in the form that goes to the ranks, and how it may be shared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from ...parallel_backend.axes import BATCH_AXES, STAGE_AXES, TOKEN_AXES
from ...parallel_backend.costs.forward import ForwardCost, Work
from ...parallel_backend.plan import ParallelPlan
from ...worker.comfyui.patched_options import (
    ALL_TOKENS,
    COMPILED,
    FACTS,
    KERNEL,
    MODEL_CHANGES,
    NODE_FUNCTIONS,
    OTHER_OPTIONS,
    OVERRIDE,
    PATCHES,
    REPLACED,
)
from ...worker.wire.tensors import UnsendableError
from ...worker.wire.tree import PLAIN, pack
from .attention_kernels import find_kernel
from .describe import Inside
from .facts import Facts
from .module_guard import Change

# Options that have done their work in ComfyUI's process by now, or are of no use elsewhere.
KEPT_HERE = ("wrappers", "callbacks", "uuids", "prefetch_dynamic_vbars")
# Options that code outside of the model's own classes reads, and that may be more than data. Options that neither
# reads are for the nodes' own wrappers, which run here.
READ_BY_CLASSES = (OVERRIDE, "model_patch_data", "x_ref_attn_map")
# Options that ComfyUI makes anew for each call.
MADE_FOR_A_CALL = ("cond_or_uncond", "sigmas", "sample_sigmas")
# Options that a class writes its own results into, for its next call.
WRITTEN_BY_CLASSES = {"ar_state": "sampling frame by frame (autoregressive)"}
# Values of `torch.compile`'s arguments.
WITH_CUDA_GRAPHS = ("reduce-overhead", "max-autotune", "cudagraphs", "triton.cudagraphs")
Options = Mapping[str, Any]
SHOWN = 3  # the most changes of a module that are named


def describe_call(
    inside: Inside,
    options: Options,
    changes: Iterable[Change],
    patches: Mapping[str, Any],
    notes: Callable[[], Mapping[torch.nn.Module, Iterable[str]]],
) -> tuple[dict[str, Any], list[str]]:
    """Returns a call's options in the form that goes to the ranks, with the changes of the module, and why the ranks
    cannot run the call; empty if they can.

    patches: objects that a patcher put in, by path. notes: returns attributes that nodes keep on parts of the model.
    """
    inside.begin()
    its = lambda name: lambda error: f"a change of its {name} ({error})"  # noqa: E731
    described = [inside.attempt(its(path), inside.describe_object_patch, path, each) for path, each in patches.items()]
    described += [inside.attempt(its(each.name), inside.describe_change, each) for each in changes]
    del inside.reasons[SHOWN:]
    encoded = encode_options(options, inside)
    if inside.has_unknown:
        inside.attempt(lambda error: f"what a node keeps on its parts ({error})", inside.add_notes, notes())
    inside.keep_rank_tokens()
    encoded |= {MODEL_CHANGES: described} if described else {}
    encoded |= {ALL_TOKENS: True} if inside.needs_all_tokens else {}
    encoded |= {FACTS: inside.asked} if inside.asked else {}
    return encoded, inside.reasons


def encode_options(options: Options, inside: Inside) -> dict[str, Any]:
    """Returns the options in the form that goes to the ranks."""
    inside.reasons += list_written(options)

    def describe(value: Any, place: str, between: bool, is_data: bool = False, owner: str = "") -> Any:
        owner, where = owner or find_owner(value), f"the model patch {place!r}"
        say = lambda error: f"the model patch {place!r} of {owner} ({error})"  # noqa: E731
        return inside.attempt(say, inside.describe, value, where, owner, between, is_data)

    patches, replaced = (inside.places.options.get(part, ()) for part in (PATCHES, REPLACED))
    functions = {
        PATCHES: {
            name: [describe(each, name, name in patches) for each in own]
            for name, own in options.get(PATCHES, {}).items()
        },
        REPLACED: {
            name: [[list(key), describe(each, name, name in replaced)] for key, each in own.items()]
            for name, own in options.get(REPLACED, {}).items()
        },
        OTHER_OPTIONS: {},
    }
    found = {}
    for name, value in options.items():
        if name in (*KEPT_HERE, PATCHES, REPLACED, *WRITTEN_BY_CLASSES):
            continue
        may_keep = inside.has_unknown and isinstance(value, (dict, list)) and name not in MADE_FOR_A_CALL
        if is_data(name, options) and not may_keep:
            found[name] = value
        elif name == OVERRIDE and (kernel := find_kernel(value, inside.files)):
            found[KERNEL] = kernel
        elif name in READ_BY_CLASSES:
            functions[OTHER_OPTIONS][name] = describe(value, name, False)
        elif inside.places.reads_option(name):  # nobody knows what for
            functions[OTHER_OPTIONS][name] = describe(value, name, False, owner="the model's class")
        elif inside.has_unknown:
            # Only functions read it that were asked until now.
            between = all(facts.between for _, facts in inside.asked)
            functions[OTHER_OPTIONS][name] = describe(value, name, between, True)
    return {**found, NODE_FUNCTIONS: functions} if any(functions.values()) else found


def list_written(options: Options) -> list[str]:
    """Returns, in words, what the model's class keeps from call to call in these options."""
    return [words for name, words in WRITTEN_BY_CLASSES.items() if name in options]


def join(reasons: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(reasons))


def list_unshared(asked: Sequence[Options], plan: ParallelPlan, work: Work) -> Iterator[str]:
    """Yields the functions that would see only a part of what they need, by name. asked, work: see `limit_work`."""
    # Whether each rank runs calls with all their rows. Shares by speed cut them.
    are_whole = not work.parallel_calls % plan.ways(BATCH_AXES) and not plan.speeds
    for place, facts in (each for options in asked for each in options.get(FACTS, ())):
        needs = (
            (STAGE_AXES, False, "blocks"),
            (TOKEN_AXES, facts.splits_tokens or facts.between, "tokens"),
            (BATCH_AXES, facts.splits_rows or are_whole, "rows of the batch"),
        )
        for axes, is_right, what in needs:
            split = [f"{axis}={getattr(plan, axis)}" for axis in axes if getattr(plan, axis) > 1]
            if axes == STAGE_AXES and plan.patches > 1:
                split.append(f"patches={plan.patches}")
            if split and not is_right:
                yield f"{place} of {facts.node} under {', '.join(split)} (it needs all {what} in one place)"


def limit_work(work: Work, asked: Sequence[Options]) -> Work:
    """Returns the work with what the nodes' functions allow to share. asked: the options of its calls."""
    facts: list[Facts] = [each for options in asked for _, each in options.get(FACTS, ())]
    tokens, rows = all(each.splits_tokens or each.between for each in facts), all(each.splits_rows for each in facts)
    chosen = {f", {options[name]}" for options in asked for name in (COMPILED, KERNEL) if options.get(name)}
    work = replace(work, chosen="".join(sorted(chosen)), splits_tokens=tokens, splits_rows=rows)
    if work.forward:
        gathers = max((count_gathers(each, work.forward) for each in asked), default=0)
        work = replace(work, forward=replace(work.forward, gathers=gathers))
    runs_apart = not rows and len(asked) > 1 and all(each.is_stateless for each in facts)
    return replace(work, parallel_calls=len(asked)) if runs_apart else work


def count_gathers(options: Options, forward: ForwardCost) -> int:
    """Returns how often a forward gathers all tokens for functions: after each block, or in each block of a UNet once
    for each place."""
    if ALL_TOKENS not in options:
        return 0
    functions = options.get(NODE_FUNCTIONS, {})
    places = sum(len(functions.get(part, ())) for part in (PATCHES, REPLACED)) if forward.exchanges else 1
    return forward.count * places


def find_owner(function: Any) -> str:
    """Returns the node or class that a function belongs to."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        return type(owner).__name__
    return getattr(function, "__qualname__", type(function).__name__).partition(".")[0]


def is_data(name: str, options: Options) -> bool:
    try:
        pack(options.get(name), name, {})
    except UnsendableError:
        return False
    return True


def compile_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those `torch.compile` arguments of ComfyUI's node with which the ranks compile the blocks; none if they
    do not, as for CUDA graphs: ranks exchange and fetch into other memory in each forward, and a CUDA graph would read
    the old one."""
    if not arguments:
        return {}
    backend, mode, options = arguments["backend"], arguments.get("mode"), arguments.get("options") or {}
    asked = [each for each in (mode, backend, *(name for name in options if options[name])) if each in WITH_CUDA_GRAPHS]
    if asked or not isinstance(backend, str):
        why = f"whose {asked[0]} makes CUDA graphs" if asked else "whose backend is a function here"
        log_once(f"The ranks run the model without torch.compile, {why}.")
        return {}
    log_once(f"The ranks compile the model's blocks ({backend}), which takes the first step longer.")
    options = {name: value for name, value in options.items() if type(value) in PLAIN}
    return {"backend": backend, "mode": mode, "dynamic": arguments.get("dynamic"), "options": options}


@cache
def log_once(words: str) -> None:
    logging.info("[ParallelDiT] %s", words)
