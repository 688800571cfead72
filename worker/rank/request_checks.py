"""Checks each request on every rank before any rank acts on it. A wrong request is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from parallel_backend.errors import RequestError
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import DTYPES

from ..comfyui.source import HostSource, VaeSource
from ..wire.operations import OPERATIONS, operation_of
from ..wire.protocol import Header
from ..wire.sampler_call import SAMPLER_TENSORS, SamplerCall
from ..wire.tensors import Tensors

Parsed = TypeVar("Parsed")

# By field, the function that reads its value, or each entry of a list.
DESCRIBED: Mapping[str, Callable[[Any], Any]] = {
    "source": HostSource.from_json, "plan": ParallelPlan.from_json, "vae": VaeSource.from_json,
    "files": HostSource.from_json,
}  # fmt: skip
MAX_STEPS = 10_000
LEAST_DIMENSIONS = 3  # of latents: a batch, channels and tokens


def check_request(header: Header, tensors: Tensors) -> None:
    """Raises RequestError for an unknown operation, and for a missing field or one of the wrong type."""
    operation, name = operation_of(header), header.get("op")
    if operation.name not in OPERATIONS:
        raise RequestError(f"The worker group knows no operation {name!r}.", "Restart ComfyUI.")
    check_fields(header, operation.fields, repr(name))
    missing = [tensor for tensor in operation.tensors if tensor not in tensors]
    if missing:
        raise RequestError(f"{name!r} needs the tensors {', '.join(missing)}, but they are missing.")
    check_parts({field: header[field] for field in operation.fields}, tensors, repr(name))


def check_parts(given: Header, tensors: Tensors, whose: str) -> None:
    """Raises RequestError for a field with an impossible value. A field means the same in all requests."""
    for field, parse in DESCRIBED.items():
        values = given.get(field, [])
        for each in values if isinstance(values, list) else [values]:
            parse_field(parse, each, field)
    if "call" in given:
        check_call(parse_field(lambda values: SamplerCall(**values), given["call"], "call"), tensors)
    if given.get("direction", "decode") not in ("decode", "encode"):
        raise RequestError(f"A VAE decodes or encodes; {given['direction']!r} is neither.")
    if given.get("dtype", "bf16") not in DTYPES:
        raise RequestError(f"Devices are measured in {', '.join(DTYPES)}; {given['dtype']!r:.40} is none of them.")
    if not all(isinstance(key, str) for key in given.get("conditions", {}).values()):
        raise RequestError(f"The keys of conditions in {whose} must be text.")
    if "calls" in given and not given["calls"]:
        raise RequestError(f"{whose} needs at least one call.")
    if not all(isinstance(key, str) for key in given.get("drop", [])):
        raise RequestError(f"The keys of what {whose} drops must be text.")


def check_fields(values: Mapping[str, Any], types: Mapping[str, type | tuple[type, ...]], whose: str) -> None:
    """Raises RequestError for a value that is missing or of another type."""
    for name, wanted in types.items():
        value = values.get(name)
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise RequestError(f"The {name} of {whose} cannot be {value!r:.100}.", "Restart ComfyUI.")


def parse_field(parse: Callable[[Any], Parsed], values: Any, what: str) -> Parsed:
    """Returns the object that a part of a request describes in JSON. Raises RequestError if `parse` cannot read it."""
    try:
        return parse(values)
    except RequestError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise RequestError(f"{values!r:.100} is not a valid {what} ({error}).", "Restart ComfyUI.") from error


def check_call(call: SamplerCall, tensors: Tensors) -> None:
    """Raises RequestError for a sampler call with impossible values."""
    types = {each.name: TYPES[type(getattr(DEFAULT_CALL, each.name))] for each in fields(SamplerCall)}
    check_fields(vars(call), types, "a sampler call")
    if not 1 <= call.steps <= MAX_STEPS * min(call.denoise, 1):  # the whole schedule is built, and only its end runs
        raise RequestError(
            f"A schedule has 1 to {MAX_STEPS} steps. {call.steps} steps with denoise={call.denoise} do not work."
        )
    if not 0 <= call.seed < 1 << 64:
        raise RequestError(f"A seed is a whole number from 0 to 2^64 - 1; {call.seed:.100g} does not work.")
    for name in SAMPLER_TENSORS:
        if name in tensors and not tensors[name].is_floating_point():
            raise RequestError(f"The {name} of a sampler call must have a float dtype, not {tensors[name].dtype}.")
        if name in tensors and (not tensors[name].numel() or name == "noise" and tensors[name].ndim < LEAST_DIMENSIONS):
            raise RequestError(f"The {name} of a sampler call cannot have the shape {tuple(tensors[name].shape)}.")
    if "mask" in tensors and "original" not in tensors:
        raise RequestError("A noise mask needs the latents that it keeps, but they are missing.")


DEFAULT_CALL = SamplerCall()
TYPES: Mapping[type, type | tuple[type, ...]] = {
    str: str, bool: bool, int: int, float: (int, float), dict: dict
}  # fmt: skip
