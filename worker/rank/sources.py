"""Where a model is that a rank is to load: the engine's kinds of files, or one for ComfyUI's own class."""

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
    """From JSON. Raises what the constructors do."""
    return HostSource.from_json(fields) if "comfyui" in fields else ModelSource.from_json(fields)


def import_ahead(expected: str) -> None:
    """Imports what the model takes that will be asked for first, on the device that the rank has by now. expected: its
    source as JSON, or nothing. What is wrong with it, its load will say."""
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
