"""Tracks which conditions the worker group already holds, so that a sampler sends them once and not with every step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch

from ..wire.tensors import Tensors

MAX_SENT = 64

Name = TypeVar("Name", bound=Hashable)


class SentConditions:
    """The tensors sent so far, by key. This side decides which ones the ranks keep; each request tells them.

    Tensors are compared by value, which is exact and faster than a hash.
    """

    def __init__(self) -> None:
        self.sent: Tensors = {}
        self.count = 0

    def exchange(self, conditions: Mapping[Name, torch.Tensor]) -> tuple[dict[Name, str], Tensors, list[str]]:
        """Returns, for a request's conditions: the key of each, the tensors to send by key, and the keys to drop."""
        keys: dict[Name, str] = {}
        new: Tensors = {}
        for name, tensor in conditions.items():
            key = next((key for key, sent in self.sent.items() if same(sent, tensor)), None)
            if key is None:
                self.count += 1
                key = f"condition.{self.count}"
                new[key] = tensor.clone()
            else:
                self.sent[key] = self.sent.pop(key)  # most recently used last
            keys[name] = key
        self.sent.update(new)
        dropped = [key for key in list(self.sent)[:-MAX_SENT] if key not in keys.values()]
        for key in dropped:
            del self.sent[key]
        return keys, new, dropped


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and bool(a.equal(b))
