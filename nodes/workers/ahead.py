"""What is done for a model before a sampler asks for it, while ComfyUI runs other nodes or none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import comfy.model_management
import torch

from ...parallel_backend.device import CPU
from ...worker.host.client import WorkerGroup
from ...worker.settings import WITH_COMFYUI, WITH_SAMPLER, SettingsError
from ...worker.wire.protocol import Header
from .group import device_count, settings, worker_group

CHUNK = 8 << 20  # bytes


def prepare(group: WorkerGroup, ranks: int, source: Header, files: Sequence[str]) -> None:
    """Has so many ranks of a group start, with what this model takes imported, and its files come into the system's
    cache. Returns at once; does nothing where the group holds the model, nor where the setting `start` says so."""
    if group.settings.start == WITH_SAMPLER or (group.loaded and group.loaded[0] == source):
        return
    group.start_ahead(ranks, source)
    threading.Thread(target=read, args=(files,), name="paralleldit-read", daemon=True).start()


def start_with_comfyui() -> None:
    """Has the ranks of an automatic plan start now, if that is set."""
    try:
        if settings().start == WITH_COMFYUI:
            worker_group().start_ahead(device_count())
    except SettingsError as error:  # a prompt is told
        logging.error("[ParallelDiT] %s", error)


def read(files: Sequence[str]) -> None:
    """Reads files through, so that the ranks find them in memory; not where they are more than is free of it. What is
    wrong with a file, its load will say."""
    try:
        paths = [Path(file) for file in files]
        free: Any = comfy.model_management.get_free_memory(torch.device(CPU))  # files in the cache count as free
        if sum(path.stat().st_size for path in paths) > free:
            return
        buffer = bytearray(CHUNK)
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    except OSError as error:
        logging.debug("[ParallelDiT] %s", error)
