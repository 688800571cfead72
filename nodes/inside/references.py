"""What functions and objects of nodes refer to, and whose code they are."""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import comfy.model_patcher
import torch

from ...worker.inside import object_graph as graph
from ...worker.inside.code_files import CODE_FOLDERS, find_package_folders

COMFYUI = Path(comfy.model_patcher.__file__).resolve().parents[1]
INSTALLED = find_package_folders([path for path in sys.path if not COMFYUI.is_relative_to(path)])  # with its packs
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
        return graph.slots_of(value, graph.CELL).values()
    if isinstance(value, METHOD):
        return value.__func__, value.__self__
    if isinstance(value, PARTIAL):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, FUNCTION):
        return *(value.__closure__ or ()), *graph.slots_of(value, graph.FUNCTION).values()
    return vars(value).values() if is_looked_into(value) else ()


def is_looked_into(value: Any) -> bool:
    """Whether it is an object of a module's, ComfyUI's or a node pack's class."""
    kind = type(value)
    if isinstance(value, (type, types.ModuleType, torch.Tensor, PATCHER)) or not hasattr(value, "__dict__"):
        return False
    return isinstance(value, torch.nn.Module) or is_comfyuis(find_module_file(kind)) or is_foreign(kind)


@functools.cache
def is_comfyuis(file: Any) -> bool:
    """Whether a file belongs to ComfyUI's own code."""
    path = Path(file or "/")
    return path.is_relative_to(COMFYUI) and path.relative_to(COMFYUI).parts[0] in CODE_FOLDERS


def find_module_file(value: Any) -> str | None:
    return getattr(sys.modules.get(getattr(value, "__module__", None) or ""), "__file__", None)


def is_foreign(value: Any) -> bool:
    """Whether it is a node pack's code, that is, neither ComfyUI's nor an installed package's."""
    if not is_code(value):
        return False
    code = getattr(value, "__code__", None)
    file = Path(str(code.co_filename if code else find_module_file(value)))
    return file.is_absolute() and not is_comfyuis(file) and not any(map(file.is_relative_to, INSTALLED))


def is_not_torchs(value: Any) -> bool:
    """Whether it is code of another package than torch, such as a kernel that a node pack put in place of torch's."""
    name = str(getattr(value, "__module__", None) or "torch").partition(".")[0]
    return isinstance(value, types.FunctionType) and name not in ("torch", *sys.stdlib_module_names)


def is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, (property, staticmethod, classmethod))
