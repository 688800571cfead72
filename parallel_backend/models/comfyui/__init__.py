"""ComfyUI's own model classes as data: one spec per class. Imports nothing of ComfyUI; see ../README.md to add one."""

# ruff: noqa: F401 (each file registers its classes)
from . import (
    audio,
    controlnets,
    cosmos,
    dit,
    flux,
    joint,
    ltx,
    lumina,
    mmdit,
    networks,
    omnigen,
    others,
    qwen,
    shapes,
    unet,
    vaes,
    video,
    wan,
)
