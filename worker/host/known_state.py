"""What ComfyUI's side knows about a session's ranks, so that it sends nothing twice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..comfyui.call_keys import take_new
from ..wire.protocol import Header
from ..wire.tensors import Tensors

MOST, MOST_BYTES = 64, 512 << 20  # of the conditions that are kept beside those of the last request


class SentConditions:
    """The tensors sent so far, by key. This side decides which ones the ranks keep; each request tells them.

    Tensors are compared by value, which is exact and faster than a hash.
    """

    def __init__(self) -> None:
        self.sent: Tensors = {}
        self.count = 0

    def diff(self, tensors: Tensors) -> tuple[dict[str, str], Tensors, list[str]]:
        """Returns, for a request's tensors: the keys of those that are kept; the tensors to send, by key or by their
        own name; and the keys to drop."""
        keys: dict[str, str] = {}
        conditions = dict(tensors)
        fresh = take_new(conditions)
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
            for index, (key, size) in enumerate(zip(others, sizes, strict=True))
            if index >= MOST or size > MOST_BYTES
        ]
        for key in dropped:
            del self.sent[key]
        return keys, {**fresh, **new}, dropped


def find_equal(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
    """Returns for each pair whether both have the same values, dtype and device. The host waits once for all tensors
    that are on an accelerator."""
    found = [
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and (not a.is_cpu or a.equal(b))
        for a, b in pairs
    ]
    there = [index for index, (a, _) in enumerate(pairs) if found[index] and not a.is_cpu]
    if there:
        answers = [(a == b).all() for a, b in (pairs[index] for index in there)]
        together = torch.stack([each.to(answers[0].device) for each in answers]).tolist()
        for index, answer in zip(there, together, strict=True):
            found[index] = answer
    return found


@dataclass
class KnownState:
    """What the ranks hold: nothing at first, and nothing after they ran out of memory.

    model: the source and plan of the one in use, as JSON objects; None also while ranks load it. patched: the key of
    the changes to its weights. sampling: whose objects the ranks have, see `Decoder`. Both are as the last
    reply says; empty for none. remarks: sentences about the plan, for the status. name: of the model, as the person
    chose it, for the status. arguments: ComfyUI's arguments when the ranks imported it; None before that. is_parked:
    whether the ranks dropped all because it was parked, as CPU ranks do, and have got nothing since."""

    model: tuple[Header, Header] | None = None
    patched: str = ""
    sampling: str = ""
    conditions: SentConditions = field(default_factory=SentConditions)
    remarks: Sequence[Header] = ()
    name: str = ""
    arguments: list[str] | None = None
    is_parked: bool = False

    def emptied(self, is_parked: bool = False) -> KnownState:
        """Returns the state of the same ranks without model and conditions. What they imported stays."""
        return KnownState(arguments=self.arguments, is_parked=is_parked)

    def note_import(self, source: Header) -> None:
        """Notes ComfyUI's arguments, if this source is loaded by ComfyUI's code."""
        if self.arguments is None:
            self.arguments = source.get("arguments")

    def needs_other_import(self, source: Header) -> bool:
        """Whether the ranks imported ComfyUI with other arguments than this source needs."""
        return None not in (self.arguments, own := source.get("arguments")) and self.arguments != own
