"""Model classes as data: one spec per class. Imports neither diffusers nor ComfyUI; see README.md to add one."""

# ruff: noqa: F401 (each file registers its classes)
from . import (
    allegro,
    auraflow,
    bria,
    chroma,
    cogvideox,
    cogview4,
    comfyui,
    consisid,
    cosmos,
    dit,
    easyanimate,
    flux,
    flux2,
    hidream,
    hunyuandit,
    hunyuanvideo,
    kandinsky5,
    latte,
    ltx,
    lumina2,
    mochi,
    omnigen,
    ovis,
    pixart,
    qwenimage,
    sana,
    sd3,
    skyreels,
    unet,
    wan,
    zimage,
)
from .adapter import Adapter, adapter_for, model_classes
from .spec import BlockList, ModelSpec, spec_named, spec_of
