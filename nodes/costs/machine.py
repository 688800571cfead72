"""Returns this machine's figures. Its ranks measure them once, into the pack's folder. Until then they are assumed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...parallel_backend.costs.machine import Machine, assume_machine
from ...parallel_backend.device import CPU
from ...worker.errors import RequestRefused
from ...worker.host.client import WorkerGroup
from ...worker.host.measured import MeasuredFile, cpu_name, measured_file
from ..workers.group import device_count, device_type, list_cards, measured_folder, settings


def file_of(dtype: str) -> MeasuredFile:
    """Returns the file for the ranks of an automatic plan. Raises SettingsError."""
    return measured_file(measured_folder(), devices_of_ranks(), dtype)


def machine_of(dtype: str) -> Machine:
    """Returns the figures of these ranks. dtype: the compute dtype, a key of DTYPES."""
    stored = file_of(dtype)
    if stored.figures:
        try:
            return Machine.of(stored.figures)
        except (KeyError, TypeError, ValueError) as error:
            stored.refuse(str(error))
    return assume_machine(devices_of_ranks(), device_type() == CPU)


def measure(group: WorkerGroup, dtype: str, check: Callable[[], None]) -> None:
    """Lets the ranks of an automatic plan measure their speed, unless it is known. Raises WorkerGroupError."""
    stored, ranks = file_of(dtype), device_count()
    if ranks < 2 or machine_of(dtype).is_measured:
        return
    try:
        found = group.measure(ranks, dtype, check)
        Machine.of(found)
        stored.keep(found)
        logging.info("[ParallelDiT] Measured %d ranks and their links, kept in %s.", ranks, stored.path)
    except RequestRefused as refused:
        logging.warning("[ParallelDiT] The ranks could not be measured: %s", refused)


def devices_of_ranks() -> tuple[str, ...]:
    """Names the device of each rank of an automatic plan, on every machine."""
    ranks, machines = device_count(), settings().machines or ("",)
    each = max(1, ranks // len(machines))
    here = [card.name for card in list_cards()[:each]] or [cpu_name()]
    pairs = ((here[rank % each % len(here)], machines[rank // each % len(machines)]) for rank in range(ranks))
    return tuple(" ".join(filter(None, pair)) for pair in pairs)
