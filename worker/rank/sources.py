"""Where a model is that a rank is to load: the engine's kinds of files, or one for ComfyUI's own class."""

from __future__ import annotations

from typing import Any

from parallel_backend.weights.loading import ModelSource

from ..comfyui.source import HostSource

Source = ModelSource | HostSource


def source_of(fields: dict[str, Any]) -> Source:
    """From JSON. Raises what the constructors do."""
    return HostSource.from_json(fields) if "comfyui" in fields else ModelSource.from_json(fields)
