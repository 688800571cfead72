"""Decodes in a rank what nodes ask for inside of the model: functions, changes, and compilation of its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parallel_backend.parallel_model import RunOptions
from parallel_backend.seams.forward import NodeCode

from ...comfyui import call_keys as keys
from ...inside.decoder import Decoder


class CallContext(NamedTuple):
    """How the model is set up while a call runs. changes: of the model, see `apply_changes`. steps: of the sampling."""

    changes: Sequence[Sequence[Any]] = ()
    steps: int = 1
    options: RunOptions = RunOptions(NodeCode.NONE)


def decode_options(decoder: Decoder, options: Mapping[str, Any]) -> tuple[dict[str, Any], CallContext]:
    """Returns the options as ComfyUI's classes read them, beside KERNEL, and the context that they ask for. Raises
    RequestError."""
    options = {name: value for name, value in options.items() if name != keys.SAMPLING}
    changes = [decoder.decode(each) for each in options.pop(keys.MODEL_CHANGES, [])]
    compiled, asked = options.pop(keys.COMPILED, None), options.pop(keys.NODE_FUNCTIONS, None)
    if asked is not None or changes:
        compiled = {}  # a graph would keep the functions of one call
    code = NodeCode.INSIDE if asked is not None or changes or options.get(keys.KERNEL) else NodeCode.NONE
    code = NodeCode.BETWEEN_BLOCKS if options.pop(keys.ALL_TOKENS, False) else code
    steps = len(options.get(keys.SCHEDULE, (0, 0))) - 1
    context = CallContext(changes, steps, RunOptions(code, compile=compiled))
    return (options if asked is None else {**options, **decode_functions(asked, decoder)}), context


def context_of(calls: Sequence[tuple[Any, CallContext]]) -> CallContext:
    """Returns the context of calls that run together: that of the first, with the code of all of them."""
    _, first = calls[0]
    return first._replace(options=first.options._replace(code=max(each.options.code for _, each in calls)))


def decode_functions(asked: dict[str, Any], decoder: Decoder) -> dict[str, Any]:
    patches = {name: decoder.decode(functions) for name, functions in asked[keys.PATCHES].items()}
    replaced = {
        name: {tuple(key): decoder.decode(each) for key, each in functions}
        for name, functions in asked[keys.REPLACED].items()
    }
    others = {name: decoder.decode(value) for name, value in asked[keys.OTHER_OPTIONS].items()}
    return {**others, keys.PATCHES: patches, keys.REPLACED: replaced}
