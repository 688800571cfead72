"""Keeps a rank on the processors of its card's NUMA node, whose memory is the nearest to the card."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import NamedTuple

import torch

from ..device import pci_address

SYSTEM, THREADS = Path("/sys"), Path("/proc/self/task")


class Node(NamedTuple):
    """A NUMA node, and the numbers of its processors."""

    number: int
    processors: frozenset[int]


def find_node(device: torch.device, system: Path = SYSTEM) -> Node | None:
    """Returns the NUMA node of a card; None where the machine has a single one, or torch or the system does not
    tell."""
    nodes, address = system / "devices/system/node", pci_address(device)
    if len(list(nodes.glob("node[0-9]*"))) < 2 or not address:
        return None
    try:
        number = int((system / "bus/pci/devices" / address / "numa_node").read_text())
        found = parse_list((nodes / f"node{number}" / "cpulist").read_text())
    except (OSError, ValueError):  # -1, also in virtual machines, is no node
        return None
    return Node(number, found) if found else None


def stay_near(device: torch.device, system: Path = SYSTEM, threads: Path = THREADS) -> None:
    """Lets this process run only on processors of its card's NUMA node, of those that it was given. The memory that it
    writes to first is then there, too.

    Call it before threads are started, which inherit this. Does nothing if none of the given processors is there."""
    if not hasattr(os, "sched_setaffinity") or not (node := find_node(device, system)):
        return
    given = os.sched_getaffinity(0)
    own = given & node.processors
    if not own:
        logging.info("The card is on NUMA node %d, of which this process may use no processor", node.number)
        return
    for thread in threads.iterdir():
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread.name), own)
    logging.info("This rank stays on NUMA node %d, its card's: %d of %d processors", node.number, len(own), len(given))


def parse_list(text: str) -> frozenset[int]:
    """Reads numbers as Linux lists them, like 0-3,8. Raises ValueError."""
    spans = (part.partition("-") for part in text.strip().split(",") if part)
    return frozenset(number for first, _, last in spans for number in range(int(first), int(last or first) + 1))
