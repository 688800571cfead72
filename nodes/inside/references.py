"""What functions and objects of nodes refer to."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable
from typing import Any

import comfy.model_patcher
import torch

from .watched import file_of, is_comfyuis, is_foreign

PATCHER = comfy.model_patcher.ModelPatcher
FUNCTION, METHOD, PARTIAL, CELL = types.FunctionType, types.MethodType, functools.partial, types.CellType


def contents(value: Any) -> Iterable[Any]:
    """Returns what a value refers to, as far as that may be a part of a model."""
    if isinstance(value, dict):
        return *value, *value.values()
    if isinstance(value, weakref.ref):
        return (value(),)
    if isinstance(value, (list, tuple, set)):
        return value
    if isinstance(value, CELL):
        try:
            return (value.cell_contents,)
        except ValueError:  # it is empty
            return ()
    if isinstance(value, METHOD):
        return value.__func__, value.__self__
    if isinstance(value, PARTIAL):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, FUNCTION):
        more = (value.__defaults__ or (), (value.__kwdefaults__ or {}).values(), vars(value).values())
        return *(value.__closure__ or ()), *(each for some in more for each in some)
    return vars(value).values() if is_looked_into(value) else ()


def is_looked_into(value: Any) -> bool:
    """Whether it is an object of a module's, ComfyUI's or a node pack's class."""
    kind = type(value)
    if isinstance(value, (type, types.ModuleType, torch.Tensor, PATCHER)) or not hasattr(value, "__dict__"):
        return False
    return isinstance(value, torch.nn.Module) or is_comfyuis(file_of(kind)) or is_foreign(kind)
