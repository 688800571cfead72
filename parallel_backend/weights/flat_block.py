"""A block's weights as one row of bytes, one behind the other, whatever their dtype or tensor class."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from .tensors import align, list_plain_tensors

Values = Callable[[str], torch.Tensor]  # of a block's parameters, by name


class FlatTensor(NamedTuple):
    """A plain tensor that a parameter is made of: a quantised one has several. offset: in bytes, in the row."""

    name: str
    which: int
    offset: int
    dtype: torch.dtype
    shape: torch.Size

    @property
    def size(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """This part of a row's bytes."""
        return flat[self.offset : self.offset + self.size].view(self.dtype).view(self.shape)


class FlatBlock:
    """Where each weight of a block is in a row of `size` bytes. Each begins where any kernel may ask for it to."""

    @torch.no_grad()
    def __init__(
        self, path: str, block: torch.nn.Module, keep: Collection[int], dtypes: Mapping[str, torch.dtype]
    ) -> None:
        """path: the block's, in the model. keep: parameters, by id, that are no part of it. dtypes: by name in the
        model, those that a parameter is computed in where its values are of another yet."""
        self.path = path
        self.block = block
        self.parts: list[FlatTensor] = []
        self.size = 0
        for name, parameter in block.named_parameters():
            if id(parameter) in keep or not parameter.numel():
                continue
            for which, part in enumerate(list_plain_tensors(parameter)):
                self.parts.append(
                    FlatTensor(name, which, self.size, dtypes.get(f"{path}.{name}", part.dtype), part.shape)
                )
                self.size += align(self.parts[-1].size)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(part.name for part in self.parts))

    @torch.no_grad()
    def write(self, target: torch.Tensor, start: int, values: Values, only: str = "") -> None:
        """Writes the row's bytes from `start` on to a target of so many, reading no others. only: of one parameter.

        start and the target's length: multiples of the alignment, so that no element is cut.
        """
        stop, name, found = start + len(target), "", []
        for part in self.parts:
            first, last = max(start, part.offset), min(stop, part.offset + part.size)
            if first >= last or only not in ("", part.name):
                continue
            if part.name != name:
                name, found = part.name, list_plain_tensors(values(part.name))
            item = part.dtype.itemsize
            elements = found[part.which].reshape(-1)[(first - part.offset) // item : -(-(last - part.offset) // item)]
            target[first - start : last - start] = elements.to(target.device, part.dtype).view(torch.uint8)

    @torch.no_grad()
    def bind(self, flat: torch.Tensor) -> None:
        """Makes the parameters views of a row's bytes, for good: what comes there are their values."""
        by_name: dict[str, list[torch.Tensor]] = {}
        for part in self.parts:
            by_name.setdefault(part.name, []).append(part.view(flat))
        for name, views in by_name.items():
            parameter = self.block.get_parameter(name)
            if parameter.device != flat.device:
                parameter = self.replace_parameter(name, rebuild_tensor(parameter, iter(views)))
            # In place: a class that wraps others may clone what a new Parameter is made of.
            for part, view in zip(list_plain_tensors(parameter), views, strict=True):
                part.data = view

    @torch.no_grad()
    def release(self) -> None:
        """Gives each parameter memory of its own, with the values that it has."""
        for name in self.names:
            for part in list_plain_tensors(self.block.get_parameter(name)):
                part.data = part.data.clone()

    def replace_parameter(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Another tensor in a parameter's place; returns what is there then."""
        owner, _, own = name.rpartition(".")
        parameter = torch.nn.Parameter(value, requires_grad=False)
        setattr(self.block.get_submodule(owner), own, parameter)
        return parameter


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor of the same class and memory, which stays there when the parameter is given other memory."""
    return rebuild_tensor(tensor, iter([part.detach() for part in list_plain_tensors(tensor)]))


def rebuild_tensor(tensor: torch.Tensor, parts: Iterator[torch.Tensor]) -> torch.Tensor:
    """A tensor of the same class that is made of other plain tensors, taken from an iterator, on another device say."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return next(parts)
    names, context = flatten()
    inner = {name: rebuild_tensor(getattr(tensor, name), parts) for name in names}
    kind: Any = type(tensor)  # torch's protocol of subclasses that wrap others
    return kind.__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())
