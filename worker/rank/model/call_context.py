"""Decodes in a rank what nodes ask for inside of the model: functions, changes, and compilation of its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...comfyui import call_keys as keys
from ...inside.decoder import Decoder


class CallContext(NamedTuple):
    """How the model is set up while a call runs.

    changes: of the model, see `apply_changes`. compiled: arguments of `torch.compile` for the blocks; empty: do not
    compile; None: no node asks for either. steps: of the sampling. kernel: that a node chose for attention, by name.
    needs_all_tokens: whether code between the blocks needs all tokens. is_plain: whether no function of a node runs
    inside of the model."""

    changes: Sequence[Sequence[Any]] = ()
    compiled: Mapping[str, Any] | None = None
    steps: int = 1
    kernel: str = ""
    needs_all_tokens: bool = False
    is_plain: bool = True


def decode_options(options: dict[str, Any], decoder: Decoder) -> tuple[dict[str, Any], CallContext]:
    """Returns the options as ComfyUI's classes read them, and the context that they ask for. Raises RequestError."""
    options = {name: value for name, value in options.items() if name not in (keys.SAMPLING, keys.FACTS)}
    changes = [decoder.decode(each) for each in options.pop(keys.MODEL_CHANGES, [])]
    compiled, asked = options.pop(keys.COMPILED, None), options.pop(keys.NODE_FUNCTIONS, None)
    if asked is not None or changes:
        compiled = {}  # a graph would keep the functions of one call
    kernel, needs_all_tokens = str(options.pop(keys.KERNEL, "")), bool(options.pop(keys.ALL_TOKENS, False))
    is_plain, steps = asked is None and not (changes or kernel), len(options.get(keys.SCHEDULE, (0, 0))) - 1
    context = CallContext(changes, compiled, steps, kernel, needs_all_tokens, is_plain)
    return (options if asked is None else {**options, **decode_functions(asked, decoder)}), context


def context_of(calls: Sequence[tuple[Any, CallContext]]) -> CallContext:
    """Returns the context of calls that run together: that of the first, with all tokens if one of them needs them, and
    with nodes' functions if one of them has any."""
    contexts = [context for _, context in calls]
    needs_all_tokens = any(each.needs_all_tokens for each in contexts)
    return contexts[0]._replace(needs_all_tokens=needs_all_tokens, is_plain=all(each.is_plain for each in contexts))


def decode_functions(asked: dict[str, Any], decoder: Decoder) -> dict[str, Any]:
    patches = {name: decoder.decode(functions) for name, functions in asked[keys.PATCHES].items()}
    replaced = {
        name: {tuple(key): decoder.decode(each) for key, each in functions}
        for name, functions in asked[keys.REPLACED].items()
    }
    others = {name: decoder.decode(value) for name, value in asked[keys.OTHER_OPTIONS].items()}
    return {**others, keys.PATCHES: patches, keys.REPLACED: replaced}
