"""What a parameter is made of, and where its bytes lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

ALIGNMENT = 256  # bytes: a weight among others in one buffer begins at a multiple


def align(size: int) -> int:
    """The size, rounded up to where the next weight may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def list_plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that a parameter is made of: of a quantised one, its packed weights and their scales. They may
    be given other memory."""
    flatten = getattr(tensor, "__tensor_flatten__", None)  # torch's protocol of subclasses that wrap others
    if flatten is None:
        return [tensor]
    names, _ = flatten()
    return [part for name in names for part in list_plain_tensors(getattr(tensor, name))]


def held_bytes(module: torch.nn.Module) -> int:
    """Bytes of a module's weights that this rank has."""
    return sum(part.nbytes for tensor in module.state_dict().values() for part in list_plain_tensors(tensor))


def list_storages(
    module: torch.nn.Module, device: torch.device, others: Sequence[torch.Tensor] = ()
) -> list[torch.UntypedStorage]:
    """The storages on a device that hold the module's parameters and buffers, and other tensors, each once."""
    every = chain(module.parameters(), module.buffers(), others)
    tensors = (plain for tensor in every for plain in list_plain_tensors(tensor))
    storages = (tensor.untyped_storage() for tensor in tensors if tensor.device == device)
    return list({storage.data_ptr(): storage for storage in storages if storage.nbytes()}.values())
