"""Sorts what other nodes change inside of a model: some goes to the ranks as data, the rest is refused by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ...parallel_backend.axes import BATCH_AXES, STAGE_AXES, TOKEN_AXES
from ...parallel_backend.plan import ParallelPlan
from ...worker.comfyui.functions import KNOWN, Known, encode_value, home_of
from ...worker.comfyui.patched_options import FUNCTIONS
from ...worker.wire.tensors import UnsendableError
from ...worker.wire.tree import PLAIN, pack
from ..errors import Refused

# Options that have done their work in ComfyUI's process by now, or are of no use elsewhere.
KEPT_HERE = ("wrappers", "callbacks", "uuids", "prefetch_dynamic_vbars")
PATCHES, REPLACED = "patches", "patches_replace"
OVERRIDE = "optimized_attention_override"
# Options that ComfyUI's classes read and that may be more than data. Other options are for the nodes' own wrappers,
# which run here.
READ_BY_CLASSES = {
    OVERRIDE: "an attention override",
    "model_patch_data": "a model patch's data",
    "x_ref_attn_map": "a map of attention to references",
}
# Options that a class writes its own results into, for its next call.
WRITTEN_BY_CLASSES = {"ar_state": "sampling frame by frame (autoregressive)"}
WITH_CUDA_GRAPHS = (
    "reduce-overhead",
    "max-autotune",
    "cudagraphs",
    "triton.cudagraphs",
)  # values of `torch.compile`'s arguments
FASTER = ("sage", "flash", "xformers", "sdpa", "flex")  # part of the name of an override that computes the same, faster
Options = Mapping[str, Any]


def list_functions(options: Options) -> Iterator[tuple[str, Any]]:
    """Returns the functions that nodes run inside of the model, by the name of their place."""
    for name, functions in options.get(PATCHES, {}).items():
        for function in functions:
            yield name, function
    for name, functions in options.get(REPLACED, {}).items():
        for function in functions.values():
            yield name, function


def reasons_inside(options: Options) -> list[str]:
    """Returns what the ranks cannot do inside of the model under any plan, by name."""
    asked = [
        f"the model patch {name!r} of {find_owner(each)}"
        for name, each in list_functions(options)
        if not is_known(each)
    ]
    asked += [
        words for name, words in READ_BY_CLASSES.items() if not (is_data(name, options) or is_faster(name, options))
    ]
    asked += [words for name, words in WRITTEN_BY_CLASSES.items() if name in options]
    return list(dict.fromkeys(asked))


def list_known_functions(options: Options) -> Iterator[tuple[str, Known]]:
    """Returns the requested functions by place, from options as the ranks get them or as nodes have them."""
    for name, function in list_functions(options):
        if is_known(function):
            yield name, KNOWN[home_of(function)]
    described = options.get(FUNCTIONS) or {PATCHES: {}, REPLACED: {}}
    for name, functions in described[PATCHES].items():
        yield from ((name, KNOWN[next(iter(each.values()))["home"]]) for each in functions)
    for name, functions in described[REPLACED].items():
        yield from ((name, KNOWN[next(iter(each.values()))["home"]]) for _, each in functions)


def join(reasons: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(reasons))


def reasons_of_plan(options: Options, plan: ParallelPlan) -> list[str]:
    """Returns the functions that would see only a part of what they need, by name."""
    found = (reason for name, shares in list_known_functions(options) for reason in unshared(name, shares, plan))
    return list(dict.fromkeys(found))


def unshared(name: str, shares: Known, plan: ParallelPlan) -> Iterator[str]:
    needs = (
        (STAGE_AXES, False, "blocks"),
        (TOKEN_AXES, shares.tokens, "tokens"),
        (BATCH_AXES, shares.rows, "rows of the batch"),
    )
    for axes, is_right, what in needs:
        split = [f"{axis}={getattr(plan, axis)}" for axis in axes if getattr(plan, axis) > 1]
        if split and not is_right:
            yield (
                f"the model patch {name!r} of {shares.node} under {', '.join(split)} (it needs all {what} in one place)"
            )


def find_allowed_sharing(asked: Iterable[Options]) -> dict[str, bool]:
    """Whether the nodes' functions allow sharing tokens, and rows. The keys are the names in a Work."""
    shares = [each for options in asked for _, each in list_known_functions(options)]
    return {"tokens": all(each.tokens for each in shares), "rows": all(each.rows for each in shares)}


def is_known(function: Any) -> bool:
    return home_of(function) in KNOWN


def find_owner(function: Any) -> str:
    """Returns the node or class that a function belongs to."""
    if isinstance(function, tuple):  # (modules, function)
        return find_owner(function[-1])
    if is_known(function):
        return KNOWN[home_of(function)].node
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


def is_faster(name: str, options: Options) -> bool:
    """Whether it is an attention override with the same result, only faster. The ranks use kernels of their own."""
    override = options.get(OVERRIDE) if name == OVERRIDE else None
    words = (
        f"{getattr(override, '__module__', '')}.{getattr(override, '__qualname__', type(override).__name__)}".lower()
    )
    if override is None or not any(word in words for word in FASTER):
        return False
    log_once(f"The ranks attend by the kernel of their plan, and not by {find_owner(override)}.")
    return True


def compile_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those `torch.compile` arguments of ComfyUI's node with which the ranks compile the blocks; none if they
    do not.

    Raises Refused for CUDA graphs. Ranks exchange and fetch into other memory in each forward, and a CUDA graph would
    read the old one.
    """
    if not arguments:
        return {}
    backend = arguments["backend"]
    if not isinstance(backend, str):
        log_once("The ranks run the model without torch.compile, whose backend is a function here.")
        return {}
    mode, options = arguments.get("mode"), arguments.get("options") or {}
    asked = [each for each in (mode, backend, *(name for name in options if options[name])) if each in WITH_CUDA_GRAPHS]
    if asked:
        raise Refused(
            f"The parallel model cannot honour torch.compile's {asked[0]}, which makes CUDA graphs: ranks exchange "
            "tokens inside of blocks.",
            "Use the backend inductor without a mode, or with max-autotune-no-cudagraphs.",
        )
    log_once(f"The ranks compile the model's blocks ({backend}), which takes the first step longer.")
    options = {name: value for name, value in options.items() if type(value) in PLAIN}
    return {"backend": backend, "mode": mode, "dynamic": arguments.get("dynamic"), "options": options}


@cache
def log_once(words: str) -> None:
    logging.info("[ParallelDiT] %s", words)


def encode_options(options: Options, name_object: Callable[[Any], str]) -> dict[str, Any]:
    """Returns the options in the form that goes to the ranks. Raises Refused. They have no `reasons_inside`."""
    left_out = {*KEPT_HERE, PATCHES, REPLACED}
    found = {name: value for name, value in options.items() if name not in left_out and is_data(name, options)}
    try:
        functions = {
            PATCHES: {
                name: [encode_value(each, name_object) for each in functions]
                for name, functions in options.get(PATCHES, {}).items()
            },
            REPLACED: {
                name: [[list(key), encode_value(each, name_object)] for key, each in functions.items()]
                for name, functions in options.get(REPLACED, {}).items()
            },
        }
    except UnsendableError as error:
        raise Refused(*error.explanation) from error
    return {**found, FUNCTIONS: functions} if any(functions.values()) else found
