"""Applies in a rank what nodes change inside the model: functions, attributes, and compilation of its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from .functions import FunctionDecoder

# Names in the options that go to the ranks: encoded functions; the run during which objects live; attributes of the
# model; and arguments of `torch.compile` for its blocks.
FUNCTIONS, RUN, ATTRIBUTES = "paralleldit_functions", "paralleldit_run", "paralleldit_attributes"
COMPILED = "paralleldit_compiled"
OPTIONS = "transformer_options"  # among the arguments of a call
SCHEDULE = "sample_sigmas"  # in ComfyUI's own options: the noise level before the first step, and after each


class CallContext(NamedTuple):
    """How the model is set up while a call runs.

    attributes: by path. compiled: arguments of `torch.compile` for the blocks; empty: do not compile; None: no node
    asks for either. steps: of the sampling.
    """

    attributes: Mapping[str, Any] = {}
    compiled: Mapping[str, Any] | None = None
    steps: int = 1


def decode_options(options: dict[str, Any], decoder: FunctionDecoder) -> tuple[dict[str, Any], CallContext]:
    """Returns the options as ComfyUI's classes read them, and the context that they ask for. Raises RequestError."""
    options = dict(options)
    decoder.start_run(options.pop(RUN, ""))
    attributes, compiled, asked = options.pop(ATTRIBUTES, {}), options.pop(COMPILED, None), options.pop(FUNCTIONS, None)
    if asked is not None:
        compiled = {}  # a graph would keep the functions of one call
    context = CallContext(attributes, compiled, len(options.get(SCHEDULE, (0, 0))) - 1)
    return (options if asked is None else {**options, **decode_functions(asked, decoder)}), context


def decode_functions(asked: dict[str, Any], decoder: FunctionDecoder) -> dict[str, Any]:
    patches = {name: [decoder.decode(each) for each in functions] for name, functions in asked["patches"].items()}
    replaced = {
        name: {tuple(key): decoder.decode(each) for key, each in functions}
        for name, functions in asked["patches_replace"].items()
    }
    return {"patches": patches, "patches_replace": replaced}


def compile_key(kwargs: Mapping[str, Any]) -> tuple[int, str]:
    """Returns the part of a call's arguments that decides whether blocks are compiled: compiling slows the first
    step."""
    options = kwargs.get(OPTIONS) or {}
    return len(options.get(SCHEDULE, ())), str(options.get(COMPILED))


@contextmanager
def set_attributes(model: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """While entered, the model has these attributes, by path."""
    if not values:
        yield
        return
    import comfy.utils

    before = {name: comfy.utils.set_attr(model, name, value) for name, value in values.items()}
    try:
        yield
    finally:
        for name, value in before.items():
            comfy.utils.set_attr(model, name, value)
