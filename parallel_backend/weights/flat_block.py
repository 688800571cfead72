"""Packs all weights of a block into one flat run of bytes, whatever their dtype or tensor class."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from .tensors import align, list_plain_tensors

Values = Callable[[str], torch.Tensor]  # takes a parameter's name in its block


class FlatTensor(NamedTuple):
    """A plain tensor inside a flat block. A quantised parameter is made of several. offset: where it starts, in
    bytes."""

    name: str
    which: int
    offset: int
    dtype: torch.dtype
    shape: torch.Size

    @property
    def size(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """Returns this tensor as a view of the block's flat bytes."""
        return flat[self.offset : self.offset + self.size].view(self.dtype).view(self.shape)


class FlatBlock:
    """The place of each weight in the block's `size` flat bytes. Each weight starts at an aligned offset."""

    @torch.no_grad()
    def __init__(
        self, path: str, block: torch.nn.Module, keep: Collection[int], dtypes: Mapping[str, torch.dtype]
    ) -> None:
        """path: the block's path in the model.
        keep: the ids of parameters to leave out.
        dtypes: by name in the model, the compute dtype of a parameter whose values have another dtype for now."""
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
        """Writes the flat bytes from `start` on into `target`, as many as it holds. Reads no other weights. start and
        the target's length are multiples of the alignment, so no element is cut. only: write this parameter alone."""
        for where, dtype, elements in self.elements(start, start + len(target), values, only):
            target[where] = elements.to(target.device, dtype).view(torch.uint8)

    def elements(
        self, start: int, stop: int, values: Values, only: str = ""
    ) -> Iterator[tuple[slice, torch.dtype, torch.Tensor]]:
        """Yields the weights between these bytes: the bytes from `start` on that they fill, in which dtype, and the
        values."""
        name, found = "", []
        for part in self.parts:
            first, last = max(start, part.offset), min(stop, part.offset + part.size)
            if first >= last or only not in ("", part.name):
                continue
            if part.name != name:
                name, found = part.name, list_plain_tensors(values(part.name))
            item = part.dtype.itemsize
            elements = found[part.which].reshape(-1)[(first - part.offset) // item : -(-(last - part.offset) // item)]
            yield slice(first - start, last - start), part.dtype, elements

    @torch.no_grad()
    def bind(self, flat: torch.Tensor) -> None:
        """Turns the parameters into views of the flat bytes. Whatever is written there later becomes their value."""
        by_name: dict[str, list[torch.Tensor]] = {}
        for part in self.parts:
            by_name.setdefault(part.name, []).append(part.view(flat))
        for name, views in by_name.items():
            parameter = self.block.get_parameter(name)
            if parameter.device != flat.device:
                owner, _, own = name.rpartition(".")
                parameter = torch.nn.Parameter(rebuild_tensor(parameter, iter(views)), requires_grad=False)
                setattr(self.block.get_submodule(owner), own, parameter)
            # In place: a tensor class that wraps others may clone the parts of a new Parameter.
            for part, view in zip(list_plain_tensors(parameter), views, strict=True):
                part.data = view

    @torch.no_grad()
    def release(self) -> None:
        """Gives each parameter its own memory again, with its present value."""
        for name in self.names:
            for part in list_plain_tensors(self.block.get_parameter(name)):
                part.data = part.data.clone()


def aliases(model: torch.nn.Module, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Returns new tensors of the same classes, by name, on the memory of these parameters. They stay there when a
    parameter gets other memory."""
    return {
        name: rebuild_tensor(parameter, iter([part.detach() for part in list_plain_tensors(parameter)]))
        for name, parameter in model.named_parameters()
        if name in names
    }


def rebuild_tensor(tensor: torch.Tensor, parts: Iterator[torch.Tensor]) -> torch.Tensor:
    """Returns a tensor of the same class, made of other plain tensors. They may be on another device."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return next(parts)
    names, context = flatten()
    inner = {name: rebuild_tensor(getattr(tensor, name), parts) for name in names}
    kind: Any = type(tensor)  # torch's protocol of subclasses that wrap others
    return kind.__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())
