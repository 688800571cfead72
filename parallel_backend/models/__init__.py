"""Model families as data: one spec a diffusers class. Imports no diffusers; see README.md to add a family."""

from . import (
    auraflow,
    chroma,
    cogvideox,
    cogview4,
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
from .spec import ModelSpec, SideInput, model_classes, spec_for

__all__ = [
    "ModelSpec",
    "SideInput",
    "auraflow",
    "chroma",
    "cogvideox",
    "cogview4",
    "dit",
    "flux",
    "flux2",
    "hunyuandit",
    "hunyuanvideo",
    "ltx",
    "lumina2",
    "model_classes",
    "pixart",
    "qwenimage",
    "sd3",
    "spec_for",
    "wan",
    "zimage",
]
