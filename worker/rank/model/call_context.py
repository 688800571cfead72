"""Decodes in a rank what nodes ask for inside of the model: functions, changes, and compilation of its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parallel_backend.seams.forward import NodeCode

from ...comfyui import call_keys as keys
from ...inside.decoder import Decoder


class CallContext(NamedTuple):
    """How the model is set up while a call runs.

    changes: of the model, see `apply_changes`. code, compile: see `RunOptions`. steps: of the sampling. kernel: that a
    node chose for attention, by name."""

    changes: Sequence[Sequence[Any]] = ()
    code: NodeCode = NodeCode.NONE
    compile: Mapping[str, Any] | None = None
    steps: int = 1
    kernel: str = ""


def decode_options(options: dict[str, Any], decoder: Decoder) -> tuple[dict[str, Any], CallContext]:
    """Returns the options as ComfyUI's classes read them, and the context that they ask for. Raises RequestError."""
    options = {name: value for name, value in options.items() if name not in (keys.SAMPLING, keys.FACTS)}
    changes = [decoder.decode(each) for each in options.pop(keys.MODEL_CHANGES, [])]
    compiled, asked = options.pop(keys.COMPILED, None), options.pop(keys.NODE_FUNCTIONS, None)
    kernel, code = str(options.pop(keys.KERNEL, "")), NodeCode.NONE
    if asked is not None or changes:
        compiled, code = {}, NodeCode.INSIDE  # a graph would keep the functions of one call
    if options.pop(keys.ALL_TOKENS, False):
        code = NodeCode.BETWEEN_BLOCKS
    elif kernel:
        code = NodeCode.INSIDE
    context = CallContext(changes, code, compiled, len(options.get(keys.SCHEDULE, (0, 0))) - 1, kernel)
    return (options if asked is None else {**options, **decode_functions(asked, decoder)}), context


def context_of(calls: Sequence[tuple[Any, CallContext]]) -> CallContext:
    """Returns the context of calls that run together: that of the first, with the code of all of them."""
    contexts = [context for _, context in calls]
    return contexts[0]._replace(code=max(each.code for each in contexts))


def decode_functions(asked: dict[str, Any], decoder: Decoder) -> dict[str, Any]:
    patches = {name: decoder.decode(functions) for name, functions in asked[keys.PATCHES].items()}
    replaced = {
        name: {tuple(key): decoder.decode(each) for key, each in functions}
        for name, functions in asked[keys.REPLACED].items()
    }
    others = {name: decoder.decode(value) for name, value in asked[keys.OTHER_OPTIONS].items()}
    return {**others, keys.PATCHES: patches, keys.REPLACED: replaced}
