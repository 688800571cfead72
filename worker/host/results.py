"""Reads what requests return beside predictions."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from ..wire import operations as ops
from ..wire.tensors import Tensors
from ..wire.tree import STATE


def tell_of(results: Tensors, on_state: Callable[..., None], on_whole: Callable[[str], None]) -> None:
    """Takes out of a request's results what functions of nodes changed, see `Decoder.state`, and why steps were not as
    the plan has them. Calls these functions with it."""
    state, prefix = results.pop(STATE, None), f"{STATE}."
    tensors = {name.removeprefix(prefix): results.pop(name) for name in list(results) if name.startswith(prefix)}
    on_state({} if state is None else json.loads(state.numpy().tobytes()), tensors)
    if ops.WHY in results:
        on_whole(decode_text(results.pop(ops.WHY)))


def decode_text(sent: torch.Tensor) -> str:
    """The inverse of the ranks' `encode_text`."""
    return sent.numpy().tobytes().decode()
