"""Reads what requests return beside predictions."""

from __future__ import annotations

import json

import torch

from ..wire.protocol import Header
from ..wire.tensors import Tensors
from ..wire.tree import STATE


def take_state(results: Tensors) -> tuple[Header, Tensors]:
    """Takes what functions of nodes changed out of a request's results, see `Decoder.state`."""
    state, prefix = results.pop(STATE, None), f"{STATE}."
    names = [name for name in results if name.startswith(prefix)]
    tensors = {name.removeprefix(prefix): results.pop(name) for name in names}
    return {} if state is None else json.loads(state.numpy().tobytes()), tensors


def decode_text(sent: torch.Tensor) -> str:
    """The inverse of the ranks' `encode_text`."""
    return sent.numpy().tobytes().decode()
