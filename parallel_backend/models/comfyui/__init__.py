"""ComfyUI's own model classes as data: one spec a class. Imports nothing of ComfyUI; see ../README.md to add one."""

from . import dit, flux, lumina, mmdit, qwen, wan
from .spec import BlockList, HostSpec, host_classes, host_spec, named_spec

__all__ = [
    "BlockList", "HostSpec", "dit", "flux", "host_classes", "host_spec", "lumina", "mmdit", "named_spec", "qwen", "wan"
]  # fmt: skip
