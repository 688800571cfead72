"""Lists the plain tensors of a parameter, and the storages that hold them. Compares tensors bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

ALIGNMENT = 256  # bytes: each weight in a shared buffer starts at a multiple of this
PAGE = 4096  # bytes: memory is pinned by the page
PIECE = 1 << 24  # numbers that are compared at once


def align(size: int) -> int:
    """Rounds a size up to where the next weight may start."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def whole_pages(size: int) -> int:
    """Rounds a size up to where other memory may be pinned."""
    return -(-align(size) // PAGE) * PAGE


def list_plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Lists the plain tensors that make up a parameter. A quantised one has packed weights and scales. Callers may give
    them other memory."""
    flatten = getattr(tensor, "__tensor_flatten__", None)  # torch's protocol of subclasses that wrap others
    if flatten is None:
        return [tensor]
    names, _ = flatten()
    return [part for name in names for part in list_plain_tensors(getattr(tensor, name))]


def are_equal(stored: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a file's tensor, cast to the dtype of another one, has the same bits. Compares them where that one is, a
    piece at a time."""
    one, other = stored.reshape(-1), tensor.detach().reshape(-1)
    pieces = (slice(start, start + PIECE) for start in range(0, len(one), PIECE))
    return all(bits_of(one[each].to(other.device, other.dtype)).equal(bits_of(other[each])) for each in pieces)


def bits_of(row: torch.Tensor) -> torch.Tensor:
    return row.contiguous().view(torch.uint8)


def count_bytes(module: torch.nn.Module) -> int:
    """Counts the bytes of a module's weights on this rank."""
    return sum(part.nbytes for tensor in module.state_dict().values() for part in list_plain_tensors(tensor))


def list_storages(
    module: torch.nn.Module, device: torch.device, others: Sequence[torch.Tensor] = ()
) -> list[torch.UntypedStorage]:
    """Lists each storage on `device` once that holds a parameter or buffer of the module, or one of `others`."""
    every = chain(module.parameters(), module.buffers(), others)
    tensors = (plain for tensor in every for plain in list_plain_tensors(tensor))
    storages = (tensor.untyped_storage() for tensor in tensors if tensor.device == device)
    return list({storage.data_ptr(): storage for storage in storages if storage.nbytes()}.values())
