"""Devices of one name on one machine are alike, whatever a single measurement says.

Another process that keeps a core busy makes a rank look slower than its equal. So a difference between such devices
counts once several measurements, some time apart, have shown it. Until then, all have the figures of the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .machine import SPEEDS, Machine
from .predict import UNLIKE_OF_A_NAME

BELIEVED = 3  # measurements in a row
APART = 300.0  # seconds from one to the next


class Doubt(NamedTuple):
    """How many measurements in a row have shown a difference between devices of one name, and when the last did."""

    times: int = 0
    at: float = 0.0

    def is_due(self, now: float) -> bool:
        """Whether to measure again."""
        return 0 < self.times < BELIEVED and now - self.at >= APART


def choose_figures(
    found: dict[str, Any], kept: dict[str, Any] | None, doubt: Doubt, devices: Sequence[str], now: float
) -> tuple[dict[str, Any], Doubt]:
    """Returns the figures to keep of a machine, as `Machine.of` takes them, and the doubt about them.

    found: just measured. kept, doubt: before that; None if nothing was measured. devices: each rank's device and
    machine. now: in seconds. Raises what `Machine.of` raises.
    """
    even = even_out(machine := Machine.of(found), devices)
    if machine == even:
        return (kept if kept and doubt.times else found), Doubt()
    doubt = Doubt(doubt.times + 1, now)
    if doubt.times >= BELIEVED:
        return found, doubt
    return kept or even.to_json(), doubt


def even_out(machine: Machine, devices: Sequence[str]) -> Machine:
    """Returns the machine with the best figures of each device for all ranks that have it, where these differ so much
    that the ranks might not share alike."""
    speeds = list(machine.speeds)
    for device in dict.fromkeys(devices):
        alike = [rank for rank, other in enumerate(devices) if other == device]
        figures = {name: [getattr(machine.speeds[rank], name) for rank in alike] for name in SPEEDS}
        if any(max(each) >= UNLIKE_OF_A_NAME * min(each) for each in figures.values()):
            best = {name: min(each) if name == "operation" else max(each) for name, each in figures.items()}
            for rank in alike:
                speeds[rank] = replace(speeds[rank], **best)
    return replace(machine, speeds=tuple(speeds))
