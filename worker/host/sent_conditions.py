"""Tracks which conditions the worker group already holds, so that a sampler sends them once and not with every step."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import torch

from ..wire.tensors import Tensors

MOST, MOST_BYTES = 64, 512 << 20  # of the conditions that are kept beside those of the last request

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
        pairs = [(name, key) for name in conditions for key in self.sent]
        answers = find_equal([(conditions[name], self.sent[key]) for name, key in pairs])
        known = dict(itertools.compress(pairs, answers))
        for name, tensor in conditions.items():
            key = known.get(name)
            if key is None:
                self.count += 1
                key = f"condition.{self.count}"
                new[key] = tensor.clone()
            else:
                self.sent[key] = self.sent.pop(key)  # most recently used last
            keys[name] = key
        self.sent.update(new)
        others = [key for key in reversed(self.sent) if key not in keys.values()]  # the most recently used first
        sizes = itertools.accumulate(self.sent[key].nbytes for key in others)
        dropped = [
            key
            for place, (key, size) in enumerate(zip(others, sizes, strict=True))
            if place >= MOST or size > MOST_BYTES
        ]
        for key in dropped:
            del self.sent[key]
        return keys, new, dropped


def find_equal(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
    """Returns for each pair whether both have the same values, dtype and device. The host waits once for all tensors
    that are on an accelerator."""
    found = [
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and (not a.is_cpu or a.equal(b))
        for a, b in pairs
    ]
    there = [place for place, (a, _) in enumerate(pairs) if found[place] and not a.is_cpu]
    if there:
        answers = [(a == b).all() for a, b in (pairs[place] for place in there)]
        together = torch.stack([each.to(answers[0].device) for each in answers]).tolist()
        for place, answer in zip(there, together, strict=True):
            found[place] = answer
    return found
