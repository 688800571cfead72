"""Packs the arguments of a model call: JSON for lists, tuples, dicts, numbers, text and None; tensors beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .tensors import Tensors, UnsendableError

# The JSON keys that mark a tensor (by name), a tuple, and a dict.
TENSOR, TUPLE, DICT = "tensor", "tuple", "dict"
PREDICTION = "prediction"  # a result's path is PREDICTION, the number of the call, and the number of its tensor
PLAIN = (bool, int, float, str, type(None))

Arguments = tuple[Sequence[Any], Mapping[str, Any]]  # of a call


def pack(value: Any, path: str, tensors: Tensors) -> Any:
    """Returns the value as JSON, and puts its tensors into `tensors` under paths that begin with `path`.

    Raises UnsendableError.
    """
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {TENSOR: path}
    if type(value) in PLAIN:
        return value
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise UnsendableError(f"{path} has keys that are not text, so it cannot be sent to the ranks.")
        return {DICT: {key: pack(item, f"{path}.{key}", tensors) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        items = [pack(item, f"{path}.{index}", tensors) for index, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    raise UnsendableError(f"{path} is a {type(value).__name__}, which cannot be sent to the ranks.")


def unpack(packed: Any, tensors: Tensors) -> Any:
    """The inverse of `pack`. Raises ValueError for an unknown form, and KeyError for a missing tensor."""
    if isinstance(packed, list):
        return [unpack(item, tensors) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if len(packed) != 1:
        raise ValueError(f"{packed!r:.100} is not a packed value")
    ((kind, value),) = packed.items()
    if kind == TENSOR:
        return tensors[value]
    if kind == TUPLE:
        return tuple(unpack(item, tensors) for item in value)
    if kind == DICT:
        return {key: unpack(item, tensors) for key, item in value.items()}
    raise ValueError(f"{kind!r:.100} is not a kind of packed value")
