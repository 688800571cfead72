"""A rank on a card runs on the processors that are near to it, of those that it was given."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from parallel_backend.groups.processors import stay_near

CARD = torch.device("cuda", 1)
ALL = frozenset(range(16))


class Machine:
    """A pretended machine. set: by thread, the processors that it was given."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.system, self.threads = folder / "sys", folder / "task"
        self.set: dict[int, frozenset[int]] = {}
        self.patch = monkeypatch
        for number, processors in enumerate(("0-3,8-11", "4-7,12,13-15")):
            node = self.system / f"devices/system/node/node{number}"
            node.mkdir(parents=True)
            (node / "cpulist").write_text(f"{processors}\n")
        self.is_at(1)
        self.patch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda card: SimpleNamespace(pci_domain_id=card.index - 1, pci_bus_id=0xC1, pci_device_id=2),
        )
        for thread in (7, 8, 9):
            (self.threads / str(thread)).mkdir(parents=True)
        self.is_given(ALL)
        self.patch.setattr(os, "sched_setaffinity", self.give)

    def is_at(self, node: int) -> None:
        folder = self.system / "bus/pci/devices/0000:c1:02.0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "numa_node").write_text(f"{node}\n")

    def is_given(self, processors: frozenset[int]) -> None:
        self.patch.setattr(os, "sched_getaffinity", lambda _: set(processors))

    def give(self, thread: int, processors: set[int]) -> None:
        if thread == 9:
            raise ProcessLookupError("it has ended")
        self.set[thread] = frozenset(processors)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_all_threads_of_a_rank_stay_on_its_cards_node(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stay_near(CARD, machine.system, machine.threads)
    assert machine.set == dict.fromkeys((7, 8), frozenset({4, 5, 6, 7, 12, 13, 14, 15}))
    assert "NUMA node 1, its card's: 8 of 16 processors" in caplog.text


def test_only_processors_that_the_user_has_left_are_used(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    machine.is_given(frozenset({2, 3, 4, 5}))
    stay_near(CARD, machine.system, machine.threads)
    assert set(machine.set.values()) == {frozenset({4, 5})}
    machine.set.clear()
    machine.is_given(frozenset({0, 1}))
    stay_near(CARD, machine.system, machine.threads)
    assert not machine.set
    assert "on NUMA node 1, of which this process may use no processor" in caplog.text


@pytest.mark.parametrize("lacks", ["a second node", "the card's node", "an address"])
def test_without_knowledge_of_nodes_nothing_is_changed(lacks: str, machine: Machine) -> None:
    if lacks == "a second node":
        (machine.system / "devices/system/node/node1").rename(machine.system / "elsewhere")
        machine.is_at(0)
    elif lacks == "the card's node":
        machine.is_at(-1)
    else:  # as in older releases of torch
        machine.patch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="a card"))
    stay_near(CARD, machine.system, machine.threads)
    assert not machine.set
