"""The model families of the editor: one file each, beside the engine's spec in `parallel_backend/models`."""

from . import dit, flux, pixart, sd3, wan
from .base import HostFamily, Layout, Table, detected_as, families, family_for

__all__ = [
    "HostFamily",
    "Layout",
    "Table",
    "detected_as",
    "dit",
    "families",
    "family_for",
    "flux",
    "pixart",
    "sd3",
    "wan",
]
