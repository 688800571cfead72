"""What nodes ask of the inside of a model, in a rank: functions of ComfyUI's own, where its classes look for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from .functions import FunctionDecoder

# Of the options that go to the ranks: functions as data; the run that objects live for; attributes of the model; and
# arguments of `torch.compile` for its blocks.
FUNCTIONS, RUN, ATTRIBUTES = "paralleldit_functions", "paralleldit_run", "paralleldit_attributes"
COMPILED = "paralleldit_compiled"
OPTIONS = "transformer_options"  # among the arguments of a call
SCHEDULE = "sample_sigmas"  # of ComfyUI's own options: the noise before the first step, and after each


class CallContext(NamedTuple):
    """What the model is to be while a call runs: attributes by path, and arguments of `torch.compile` for its blocks,
    empty where they are not compiled, and None where no node has a say in it. steps: of the sampling."""

    attributes: Mapping[str, Any] = {}
    compiled: Mapping[str, Any] | None = None
    steps: int = 1


def decode_options(options: dict[str, Any], decoder: FunctionDecoder) -> tuple[dict[str, Any], CallContext]:
    """The options as ComfyUI's classes read them, and what they ask for beside. Raises RequestError."""
    options = dict(options)
    decoder.start_run(options.pop(RUN, ""))
    attributes, compiled, asked = options.pop(ATTRIBUTES, {}), options.pop(COMPILED, None), options.pop(FUNCTIONS, None)
    if asked is not None:
        compiled = {}  # graphs would keep to the functions of one call
    context = CallContext(attributes, compiled, len(options.get(SCHEDULE, (0, 0))) - 1)
    return (options if asked is None else {**options, **decode_functions(asked, decoder)}), context


def decode_functions(asked: dict[str, Any], decoder: FunctionDecoder) -> dict[str, Any]:
    patches = {name: [decoder.decode(each) for each in functions] for name, functions in asked["patches"].items()}
    replaced = {
        name: {tuple(key): decoder.decode(each) for key, each in functions}
        for name, functions in asked["patches_replace"].items()
    }
    return {"patches": patches, "patches_replace": replaced}


def way_of(kwargs: Mapping[str, Any]) -> tuple[int, str]:
    """Of a call's arguments, what decides whether blocks are compiled: a first step that is takes longer."""
    options = kwargs.get(OPTIONS) or {}
    return len(options.get(SCHEDULE, ())), str(options.get(COMPILED))


@contextmanager
def attributes_of(model: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """While entered, a model has these attributes, by path."""
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
