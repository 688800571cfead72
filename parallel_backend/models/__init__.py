"""Model classes as data: one spec per class. Imports no library of models; see README.md to add one."""

# ruff: noqa: F401 (each file registers its classes)
from . import comfyui, joint, mochi, single, unet
from .spec import BlockList, ModelSpec, known_spec, model_classes, spec_named, spec_of
