"""In place of the compiled kernel of flex attention, for labelled tensors: what a block mask says, block by block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

from parallel_backend.seams.kernels import flex

from .tensors import Labelled


def held(value: torch.Tensor) -> torch.Tensor:
    """The values, for which nobody waits: a kernel reads them on the device."""
    assert isinstance(value, Labelled), f"a kernel on the GPU was given a tensor on {value.device}"
    return value.held


def listed(counts: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Which blocks a mask lists, (N, N)."""
    found = torch.zeros(places.shape[-2:], dtype=torch.bool)
    for row, (count, own) in enumerate(zip(held(counts)[0, 0].tolist(), held(places)[0, 0], strict=True)):
        found[row, own[:count].long()] = True
    return found


def kernel(query: Any, key: Any, value: Any, *, block_mask: Any, scale: float | None) -> torch.Tensor:
    """Computes the blocks that the mask lists; of those that are not full, what its function says."""
    tokens = query.shape[2]
    assert block_mask.seq_lengths == (tokens, key.shape[2])
    full = listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    partial = listed(block_mask.kv_num_blocks, block_mask.kv_indices)
    assert not (full & partial).any()
    pairs, tile_of = (held(cell.cell_contents) for cell in block_mask.mask_mod.__closure__)
    by_function = pairs[tile_of][:, tile_of]
    block = torch.arange(tokens) // flex.BLOCK
    mask = full[block][:, block] | (partial[block][:, block] & by_function)
    found = F.scaled_dot_product_attention(held(query), held(key), held(value), attn_mask=mask, scale=scale)
    return Labelled(found)


@contextlib.contextmanager
def flex_on_labelled() -> Iterator[None]:
    """While entered, the compiled kernel runs on labelled tensors, and a compiler is there."""
    with patch.object(flex, "compile_flex", lambda: kernel), patch.object(flex, "why_no_compiler", lambda **_: None):
        yield
