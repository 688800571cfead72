"""The model families of the editor: one file each, beside the engine's spec in `parallel_backend/models`."""

from . import (
    auraflow,
    chroma,
    cogvideox,
    dit,
    flux,
    flux2,
    hunyuandit,
    hunyuanvideo,
    ltx,
    lumina2,
    pixart,
    qwenimage,
    sd3,
    wan,
    zimage,
)
from .base import HostFamily, Table, family_for

__all__ = [
    "HostFamily",
    "Table",
    "auraflow",
    "chroma",
    "cogvideox",
    "dit",
    "family_for",
    "flux",
    "flux2",
    "hunyuandit",
    "hunyuanvideo",
    "ltx",
    "lumina2",
    "pixart",
    "qwenimage",
    "sd3",
    "wan",
    "zimage",
]
