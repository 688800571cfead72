"""Guards a model's module in ComfyUI's process. Nodes may look at it.

Changes of the module or its weights would have no effect, so they are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from ...parallel_backend.compat import hooks_of
from ..errors import Refused

SET_BY_COMFYUI = ("training",)  # attributes that ComfyUI itself sets
HARMLESS = ("requires_grad_", "detach_", "retain_grad")
WRITES = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")
DATA: Any = torch.Tensor.data  # a property that writes to weights without torch's checks
Attributes = dict[str, Any]


def weights_error(asked: str) -> Refused:
    return Refused(
        f"The parallel model cannot take {asked}: its weights are in worker processes.",
        "Remove that node, or use the stock loader.",
    )


class RemoteParameter(torch.nn.Parameter):
    """A weight whose numbers are in the ranks. Writing to it is refused."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.startswith("_") and name not in HARMLESS
        if in_place or name in WRITES or func == DATA.__set__:
            raise weights_error("a node that writes over weights")
        given = kwargs or {}
        others = [
            each for each in (*args, *given.values()) if isinstance(each, torch.Tensor) and not isinstance(each, cls)
        ]
        if not all(each.is_meta for each in others):
            raise weights_error("a node or a sampler that runs a part of it")
        try:
            result: Any = super().__torch_function__(func, types, args, given)
        except NotImplementedError as error:  # torch raises it for a tensor without numbers
            raise weights_error("a node that reads weights") from error
        return result.as_subclass(cls) if func == DATA.__get__ else result


def replace_weights(module: torch.nn.Module) -> None:
    """Makes the module's weights RemoteParameters. Quantised layers keep theirs, which have a class of their own."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if type(parameter) is torch.nn.Parameter and type(parameter.data) is torch.Tensor:
                part.register_parameter(name, RemoteParameter(parameter.data, requires_grad=False))


class ModuleGuard:
    """Remembers what a module's parts hold, to compare with later."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.before = {name: list_attributes(part) for name, part in module.named_modules()}

    def check(self, allowed: Collection[str]) -> None:
        """Raises Refused if a node has changed the module since. allowed: names of attributes that may have changed."""
        found = []
        for name, part in self.module.named_modules():
            path, before = f"{name}." if name else "", self.before.get(name, {})
            if any(hooks_of(part)):
                found.append(name or "the model")
            for own, value in list_attributes(part).items():
                new = own not in before
                if path + own not in allowed and (is_change(value) if new else before[own] is not value):
                    found.append(path + own)
        if found:
            raise Refused(
                f"The parallel model cannot honour a change of its {', '.join(found[:3])}: its inside runs "
                "in worker processes.",
                "Remove that node, or use the stock loader.",
            )


def list_attributes(part: torch.nn.Module) -> Attributes:
    """Returns the attributes of a module, with its own weights and parts."""
    own = {name: value for name, value in vars(part).items() if is_attribute(name, value)}
    parts = dict(part.named_children())
    return {**own, **parts, **dict(part.named_parameters(recurse=False)), **dict(part.named_buffers(recurse=False))}


def is_attribute(name: str, value: Any) -> bool:
    return name not in SET_BY_COMFYUI and (not name.startswith("_") or callable(value))


def is_change(value: Any) -> bool:
    """Whether a new attribute may be more than a node's own note."""
    return callable(value) or isinstance(value, torch.Tensor)
