"""The model families of the editor: one file each, beside the engine's spec in `parallel_backend/models`."""

from . import cogvideox, dit, flux, hunyuandit, hunyuanvideo, ltx, pixart, sd3, wan
from .base import HostFamily, Layout, Table, detected_as, families, family_for

__all__ = [
    "HostFamily",
    "Layout",
    "Table",
    "cogvideox",
    "detected_as",
    "dit",
    "families",
    "family_for",
    "flux",
    "hunyuandit",
    "hunyuanvideo",
    "ltx",
    "pixart",
    "sd3",
    "wan",
]
