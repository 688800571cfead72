"""Model families as data: one spec a diffusers class. Imports no diffusers; see README.md to add a family."""

from . import cogvideox, cogview4, dit, flux, hunyuandit, hunyuanvideo, ltx, pixart, qwenimage, sd3, wan
from .spec import ModelSpec, SideInput, block_count, model_classes, spec_for

__all__ = [
    "ModelSpec",
    "SideInput",
    "block_count",
    "cogvideox",
    "cogview4",
    "dit",
    "flux",
    "hunyuandit",
    "hunyuanvideo",
    "ltx",
    "model_classes",
    "pixart",
    "qwenimage",
    "sd3",
    "spec_for",
    "wan",
]
