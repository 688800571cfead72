"""What is compared of a model at every call: its parts, their classes, and the functions that their code calls."""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import sys
import types
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import comfy.model_base
import torch

from ...parallel_backend.compat import buffers_of, hooks_of, parameters_of, parts_of
from ...worker.compat import version_of
from ...worker.inside.changes import ATTRIBUTES, COMFYUIS, FUNCTIONS, METHODS, PARTS
from ...worker.inside.code_files import COMFYUIS as FOLDERS
from ...worker.inside.code_files import codes_in, find_package_folders

COMFYUI = Path(comfy.model_base.__file__).resolve().parents[1]
INSTALLED = find_package_folders([path for path in sys.path if not COMFYUI.is_relative_to(path)])  # with its packs
HOOKS, WEIGHTS, TORCHS = "hooks", "weights", "functions of torch"
# They choose devices and memory, and not what is computed. Packs for several devices replace their functions.
OF_DEVICES = (
    *("comfy.model_management", "comfy.memory_management", "comfy.pinned_memory"),
    *("comfy.cli_args", "comfy.internal_logging"),
)
# Functions that models' code names in modules of which it imports nothing: `comfy.ldm.common_dit.pad_to_patch_size(…)`.
NAMED = {
    "comfy.ldm.common_dit": ("pad_to_patch_size", "rms_norm"),
    "comfy.ldm.modules.attention": ("optimized_attention",),
    "comfy.rmsnorm": ("rms_norm",),
    "comfy.utils": ("common_upscale", "repeat_to_batch_size"),
}
TORCH: tuple[types.ModuleType, ...] = (torch, torch.nn.functional)
CLASS = "__class__"
PLAIN = {bool, int, float, str, type(None), dict, OrderedDict, list, tuple, set, torch.Tensor, torch.dtype}


class Watched(NamedTuple):
    """A dict that a node may change. now: it. before: a copy of it. path: goes before the names of its keys. kind:
    which changes matter. owner: the part, class or Python module that has it. names: the only keys that matter; None if
    all do."""

    now: Any
    before: Any
    path: str
    kind: str
    owner: Any
    names: frozenset[str] | None = None


def watch(now: Any, path: str, kind: str, owner: Any, names: Iterable[str] | None = None) -> Watched:
    return Watched(now, now.copy(), path, kind, owner, None if names is None else frozenset(names))


def watch_structure(module: torch.nn.Module) -> Iterator[Watched]:
    for path, part in paths_of(module):
        yield watch_attributes(part, path)
        yield watch(parts_of(part), path, PARTS, part)
        for hooks in hooks_of(part):
            yield watch(hooks, path, HOOKS, part)
    for path, config in configs_of(module).items():
        yield watch_attributes(config, f"{path}.")


def watch_attributes(owner: Any, path: str) -> Watched:
    before = {
        name: value if name.startswith("_") or name in COMFYUIS else snapshot(value)
        for name, value in vars(owner).items()
    }
    return Watched(vars(owner), before, path, ATTRIBUTES, owner)


def snapshot(value: Any) -> Any:
    """Returns a copy of a list, dict or set, and of those in it: a node may write into one. Other values stay."""
    if isinstance(value, dict):
        found = value.copy()
        found.update((name, snapshot(each)) for name, each in value.items())
        return found
    if type(value) in (list, tuple, set):
        return type(value)(map(snapshot, value))
    return value


def watch_weights(module: torch.nn.Module) -> Iterator[Watched]:
    for path, part in paths_of(module):
        for weights in (parameters_of(part), buffers_of(part)):
            yield watch(weights, path, WEIGHTS, part)


def watch_numbers(module: torch.nn.Module) -> list[tuple[Watched, str, torch.Tensor, int]]:
    """Returns the tensors with numbers that a module has here, by the dict that has them and their name there, with how
    often they were written to. Weights notice it themselves, see `local_weights.py`."""
    return [
        (watch(slots, path, WEIGHTS, part), name, tensor, version_of(tensor))
        for path, part in paths_of(module)
        for slots in (vars(part), buffers_of(part))
        for name, tensor in slots.items()
        if type(tensor) is torch.Tensor and not tensor.is_meta
    ]


def configs_of(module: torch.nn.Module) -> dict[str, Any]:
    """Returns the plain objects that parts have as attributes, such as a Flux's `params`, by path."""
    parts = paths_of(module)
    return {path + name: value for path, part in parts for name, value in vars(part).items() if is_config(value)}


def is_config(value: Any) -> bool:
    if type(value) in PLAIN:  # nearly all
        return False
    if isinstance(value, (type, enum.Enum, torch.nn.Module)) or not hasattr(value, "__dict__"):
        return False
    return is_dataclass(value) or not callable(value) and is_comfyuis(file_of(value))


def paths_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, part in module.named_modules():
        yield f"{name}." if name else "", part


def classes_of(module: torch.nn.Module) -> list[type]:
    return list(dict.fromkeys(each for part in module.modules() for each in type(part).__mro__ if each is not object))


def watch_classes(module: torch.nn.Module) -> Iterator[Watched]:
    for each in classes_of(module):
        yield watch(vars(each), f"{each.__name__}.", METHODS, each)


def namespaces_of(module: torch.nn.Module) -> dict[str, types.ModuleType]:
    """Returns ComfyUI's Python modules that define the classes, and all that these get functions or classes from."""
    names = [each.__module__ for each in classes_of(module)]
    found: dict[str, types.ModuleType] = {}
    while names:
        name = names.pop()
        place = sys.modules.get(name)
        if place is None or name in found or name in OF_DEVICES or not is_comfyuis(getattr(place, "__file__", None)):
            continue
        found[name] = place
        names += [str(getattr(value, "__module__", "")) for value in vars(place).values() if callable(value)]
    return found


def names_in_code(values: Iterable[Any]) -> Iterator[str]:
    """Yields the names in the code of functions, and in that of the methods of classes and of those inside of them."""
    for value in values:
        for each in vars(value).values() if isinstance(value, type) else ():
            if not isinstance(each, type) or each.__qualname__.startswith(f"{value.__qualname__}."):
                yield from names_in_code([each])
        function: Any = getattr(value, "fget", getattr(value, "__func__", value))
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if isinstance(code, types.CodeType):
            yield from (name for own in codes_in(code) for name in own.co_names)


def watch_functions(module: torch.nn.Module) -> Iterator[Watched]:
    places = namespaces_of(module)
    code: list[Any] = classes_of(module)
    for name, place in places.items():
        yield watch(vars(place), f"{name}.", FUNCTIONS, place)
        code += (value for value in vars(place).values() if getattr(value, "__module__", None) == name)
    used = set(names_in_code(code))
    for name, names in NAMED.items():
        if name not in places:
            place = importlib.import_module(name)
            yield watch(vars(place), f"{name}.", FUNCTIONS, place, used.intersection(names))
            used.update(names_in_code(vars(place)[each] for each in names))
    for place in TORCH:
        yield watch(vars(place), f"{place.__name__}.", TORCHS, place, used & vars(place).keys())


@functools.cache
def is_comfyuis(file: Any) -> bool:
    """Whether a file belongs to ComfyUI's own code."""
    path = Path(file or "/")
    return path.is_relative_to(COMFYUI) and path.relative_to(COMFYUI).parts[0] in FOLDERS


def file_of(value: Any) -> str | None:
    return getattr(sys.modules.get(getattr(value, "__module__", None) or ""), "__file__", None)


def is_foreign(value: Any) -> bool:
    """Whether it is a node pack's code, that is, neither ComfyUI's nor an installed package's."""
    if not is_code(value):
        return False
    code = getattr(value, "__code__", None)
    file = Path(str(code.co_filename if code else file_of(value)))
    return file.is_absolute() and not is_comfyuis(file) and not any(map(file.is_relative_to, INSTALLED))


def is_not_torchs(value: Any) -> bool:
    """Whether it is code of another package than torch, such as a kernel that a node pack put in place of torch's."""
    name = str(getattr(value, "__module__", None) or "torch").partition(".")[0]
    return isinstance(value, types.FunctionType) and name not in ("torch", *sys.stdlib_module_names)


def is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, (property, staticmethod, classmethod))
