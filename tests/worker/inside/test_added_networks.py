"""Networks that nodes add: described once, kept for the next sampling, and sent again after a change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from worker.inside.code_files import CodeFiles
from worker.inside.encoder import Encoder


class Patcher:
    """In place of ComfyUI's."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model


class Networks:
    """An encoder, and what it sends of patchers' networks, sampling by sampling."""

    def __init__(self, root: Path) -> None:
        self.pages: dict[int, tuple[str, str]] = {}
        needed = {Patcher: lambda value: (None, {"model": value.model})}
        self.encoder = Encoder(CodeFiles(str(root)), {}, needed, lambda _network: self.pages)

    def make(self) -> Patcher:
        patcher = Patcher(torch.nn.Linear(2, 2))
        for weight in patcher.model.parameters():
            self.pages[id(weight)] = ("a file", str(len(self.pages)))
        return patcher

    def send(self, *values: Any) -> list[Any]:
        """The kinds of the objects that are new to the ranks in a call, and of tensors, what was sent."""
        self.encoder.begin()
        for value in values:
            self.encoder.encode(value)
        found = self.encoder.changes()
        slots = [slot[1] for each in found for slot in each["slots"]]
        pages = [slot["page"] for slot in slots if isinstance(slot, dict) and "page" in slot]
        return sorted(each["new"][0] for each in found if "new" in each) + pages

    def next(self, *values: Any, expected: Sequence[Any] = ()) -> tuple[list[str], list[Any]]:
        """The networks that stay in the next sampling, and what its first call sends."""
        self.encoder.begin_sampling()
        self.encoder.expect(expected)
        sent = self.send(*values)
        return [type(self.encoder.entries[name].value).__name__ for name in self.encoder.kept], sent


WHOLE = ["dict", "object", "patcher", "tensor", "tensor", ["a file", "0"], ["a file", "1"]]  # a network


def test_a_network_is_described_once_and_again_after_a_change(tmp_path: Path) -> None:
    both = Networks(tmp_path)
    patcher = both.make()
    assert both.send(patcher) == WHOLE
    before = dict(both.encoder.entries)
    assert both.send(patcher) == [] and all(both.encoder.entries[name] is entry for name, entry in before.items())
    patcher.model.register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
    assert both.send(patcher) == ["tensor"]
    with torch.no_grad():
        patcher.model.weight.add_(1)
    both.pages[id(patcher.model.weight)] = ("another", "0")
    assert both.send(patcher) == [["another", "0"]]


def test_a_networks_weight_that_something_else_has_too_goes_by_its_page(tmp_path: Path) -> None:
    both = Networks(tmp_path)
    patcher = both.make()
    both.send(patcher.model.weight, patcher)
    assert both.send(patcher.model.weight, patcher) == [["a file", "0"]]
    assert both.send(patcher.model.weight, patcher) == []


def test_a_network_stays_for_the_next_sampling_that_uses_it(tmp_path: Path) -> None:
    both = Networks(tmp_path)
    patcher, other = both.make(), both.make()
    assert both.next(patcher, [1]) == ([], sorted([*WHOLE[:-2], "list"]) + WHOLE[-2:])
    assert both.next(patcher, [2]) == (["Patcher"], ["list"])
    assert both.next([3]) == ([], ["list"])
    kept, sent = both.next(other, patcher)
    assert kept == [] and len(sent) == 2 * len(WHOLE)
    both.encoder.begin_sampling()  # for a sampling that is never sent
    both.encoder.encode(both.make())
    assert both.next(other) == (["Patcher"], [])
    assert both.next(patcher)[0] == [] and id(other.model) not in both.encoder.names
    assert both.next([4], expected=[patcher.model]) == (["Patcher"], ["list"]) and both.send(patcher) == []


@pytest.mark.parametrize(
    "change", ["another file", "a tensor in no file", "another part", "refers to what is no part of it", "lost"]
)
def test_a_network_goes_to_the_ranks_again(change: str, tmp_path: Path) -> None:
    both = Networks(tmp_path)
    patcher, outside = both.make(), [1]
    if change.startswith("refers"):
        patcher.model.own = outside
    if change.startswith("a tensor"):
        del both.pages[id(patcher.model.bias)]
    both.next(outside, patcher)
    if change == "another file":
        both.pages[id(patcher.model.weight)] = ("another file", "0")
    if change == "another part":
        patcher.model.more = torch.nn.Identity()
    both.encoder.begin_sampling()
    if change == "lost":
        both.encoder.forget_sent()
    sent = both.send(outside, patcher)
    assert both.encoder.kept == [] and "patcher" in sent and sent.count("tensor") == 2
