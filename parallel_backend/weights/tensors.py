"""What a parameter is made of, and where its bytes lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

ALIGNMENT = 256  # bytes: a weight among others in one buffer begins at a multiple


def align(size: int) -> int:
    """The size, rounded up to where the next weight may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def plain_parts(held: torch.Tensor) -> list[torch.Tensor]:
    """What this rank holds of a parameter; of a quantised one, its packed weights and their scales. They are the
    tensors themselves, which may be given other memory: a DTensor's `to_local` gives a view."""
    flatten = getattr(held, "__tensor_flatten__", None)  # torch's protocol of subclasses that wrap others, its DTensor
    if flatten is None:
        return [held]
    names, _ = flatten()
    inner = (getattr(held, name) for name in names)  # of a DTensor since torch 2.13 its mesh, too
    return [part for each in inner if isinstance(each, torch.Tensor) for part in plain_parts(each)]


def held_bytes(module: torch.nn.Module) -> int:
    """Bytes of a module's weights that this rank has."""
    return sum(part.nbytes for tensor in module.state_dict().values() for part in plain_parts(tensor))


def storages_of(
    module: torch.nn.Module, device: torch.device, others: Sequence[torch.Tensor] = ()
) -> list[torch.UntypedStorage]:
    """The storages on a device that hold the module's parameters and buffers, and other tensors, each once."""
    held = chain(module.parameters(), module.buffers(), others)
    tensors = (plain for tensor in held for plain in plain_parts(tensor))
    storages = (tensor.untyped_storage() for tensor in tensors if tensor.device == device)
    return list({storage.data_ptr(): storage for storage in storages if storage.nbytes()}.values())
