"""Prepares a model before a sampler needs it, while ComfyUI runs other nodes or none."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from ...parallel_backend.weights.free_ram import available_ram_bytes
from ...worker.host.client import WorkerGroup
from ...worker.settings import WITH_COMFYUI, WITH_SAMPLER, SettingsError
from ...worker.wire.protocol import Header
from .group import device_count, settings, worker_group
from .room import measure_own_context

CHUNK = 8 << 20  # bytes


def prepare_model(group: WorkerGroup, ranks: int, source: Header, files: Sequence[str]) -> None:
    """Starts this many ranks of a group, imports what the model needs, and reads its files into the system's cache.

    Returns at once. Does nothing if the group already holds the model, or if the setting `start` forbids it.
    """
    if group.settings.start == WITH_SAMPLER or (group.loaded and group.loaded[0] == source):
        return
    group.start_ahead(ranks, source)
    threading.Thread(target=read_files, args=(files,), name="paralleldit-read", daemon=True).start()


def start_with_comfyui() -> None:
    """Starts the ranks of an automatic plan now, if the settings say so."""
    measure_own_context()
    try:
        if settings().start == WITH_COMFYUI:
            worker_group().start_ahead(device_count())
    except SettingsError as error:  # a prompt reports it
        logging.error("[ParallelDiT] %s", error)


def read_files(files: Sequence[str]) -> None:
    """Reads files so that the ranks find them in memory. Does nothing if they are larger than the free memory.

    It ignores errors, because the load reports them.
    """
    try:
        paths = [Path(file) for file in files]
        if sum(path.stat().st_size for path in paths) > available_ram_bytes():  # cached files count as free memory
            return
        for path in paths:
            with path.open("rb", buffering=0) as file, open(os.devnull, "wb", buffering=0) as nowhere:
                shutil.copyfileobj(file, nowhere, CHUNK)
    except OSError as error:
        logging.debug("[ParallelDiT] %s", error)
