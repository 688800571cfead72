"""Where the model is that a rank loads: one of the engine's kinds of files, or a file for ComfyUI's own class."""

from __future__ import annotations

import json
import logging
from typing import Any

from parallel_backend.weights.loading import ModelSource, class_of

from ..comfyui.model import import_comfyui
from ..comfyui.source import HostSource
from ..launch.imports import pause_garbage_collector

Source = ModelSource | HostSource


def source_of(fields: dict[str, Any]) -> Source:
    """Reads a source from JSON. Raises what the constructors raise."""
    return HostSource.from_json(fields) if "comfyui" in fields else ModelSource.from_json(fields)


def import_ahead(expected: str) -> None:
    """Imports what the first model will need, for the rank's device. expected: its source as JSON, or empty. Errors are
    left to the load."""
    if not expected:
        return
    try:
        source = source_of(json.loads(expected))
        with pause_garbage_collector():
            if isinstance(source, HostSource):
                import_comfyui(source)
            else:
                class_of(source)
    except Exception:
        logging.exception("what the first model takes could not be imported ahead")
