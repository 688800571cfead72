"""The speed of the ranks' devices and links, measured or, before that, assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..weights.fitting import ASSUMED as ASSUMED_LINKS
from ..weights.fitting import Links


@dataclass(frozen=True)
class Speed:
    """The speed of a rank's device while all ranks compute.

    linear, attention: FLOP/s of products and of attention, in the model's compute dtype.
    memory: bytes per second that other operations read and write.
    operation: the least seconds of one operation, however small.
    """

    name: str
    linear: float
    attention: float
    memory: float
    operation: float


class Link(NamedTuple):
    """rate: bytes per second that a rank sends. latency: seconds of one exchange without bytes."""

    rate: float
    latency: float

    def seconds(self, size: float, times: float) -> float:
        """Returns the time of `times` exchanges in which a rank sends `size` bytes in all."""
        return size / self.rate + times * self.latency


@dataclass(frozen=True)
class Machine:
    """speeds: of the ranks, in their order.
    all_to_all, all_gather, send: the links between ranks while all of them send, by operation. An all-reduce is as fast
    as an all-gather.
    host: bytes per second that arrive at a rank from pinned host memory.
    hides: the share of an exchange that takes no time while ranks compute: all of it on GPUs, and nothing on a CPU,
    whose ranks send with the cores that compute.

    A benchmark makes one from its own figures: `Machine((Speed(…),) * ranks, Link(rate, latency), …)`. Or it measures
    them with `parallel_backend.rates.measure_ranks` on its ranks and calls `Machine.of`.
    """

    speeds: tuple[Speed, ...]
    all_to_all: Link
    all_gather: Link
    send: Link
    host: float = ASSUMED_LINKS.host
    hides: float = 1.0
    is_measured: bool = True

    @property
    def links(self) -> Links:
        """The links for weights that are fetched."""
        return Links(self.all_gather.rate, self.host)

    def first(self, ranks: int) -> Machine:
        """Returns the first ranks alone. Missing ranks are copies of the last."""
        return replace(self, speeds=(*self.speeds, *self.speeds[-1:] * ranks)[:ranks])

    @classmethod
    def of(cls, measured: dict[str, Any]) -> Machine:
        """Reads what `rates.measure_ranks` returned. Raises KeyError, TypeError or ValueError for anything else."""
        links = (Link(*map(parse_positive, measured[name])) for name in LINKS)
        speeds = tuple(
            Speed(str(each["name"]), **{name: parse_positive(each[name]) for name in SPEEDS})
            for each in measured["speeds"]
        )
        hides = float(measured["hides"])
        if not speeds or not 0 <= hides <= 1:
            raise ValueError("no rank was measured" if not speeds else f"hides={hides} is no share")
        return cls(speeds, *links, host=parse_positive(measured["host"]), hides=hides)


LINKS = ("all_to_all", "all_gather", "send")
SPEEDS = ("linear", "attention", "memory", "operation")

# CARD is about an RTX 4090 with bf16 on PCIe 4.0 x16, where GPUs exchange through the host's memory. CORES is a share
# of a desktop's cores, with ranks that exchange through the machine's memory.
CARD = Speed("", 140e12, 100e12, 800e9, 5e-6)
CORES = Speed("", 1e11, 5e10, 1e10, 1e-5)
PCIE, HOST_MEMORY = Link(ASSUMED_LINKS.peers, 3e-5), Link(2e9, 1e-4)


def assume_machine(names: Sequence[str], on_cpu: bool) -> Machine:
    """Returns an assumed machine with ranks on these devices. Nothing of it is measured."""
    speed, link = (CORES, HOST_MEMORY) if on_cpu else (CARD, PCIE)
    speeds = tuple(replace(speed, name=name) for name in names)
    return Machine(speeds, link, link, link, hides=float(not on_cpu), is_measured=False)


def parse_positive(value: Any) -> float:
    """Returns the value as a float. Raises ValueError if it is not a positive number."""
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{value!r} is no measure")
    return number
