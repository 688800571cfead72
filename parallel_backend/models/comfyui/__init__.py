"""ComfyUI's own model classes as data: one spec a class. Imports nothing of ComfyUI; see ../README.md to add one."""

from . import flux, wan
from .spec import BlockList, HostSpec, host_classes, host_spec

__all__ = ["BlockList", "HostSpec", "flux", "host_classes", "host_spec", "wan"]
