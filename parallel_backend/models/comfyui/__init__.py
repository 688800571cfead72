"""ComfyUI's own model classes as data: one spec a class. Imports nothing of ComfyUI; see ../README.md to add one."""

from . import audio, cosmos, dit, flux, joint, ltx, lumina, mmdit, omnigen, others, qwen, shapes, video, wan
from .spec import BlockList, HostSpec, host_classes, host_spec, named_spec

__all__ = [
    "BlockList", "HostSpec", "audio", "cosmos", "dit", "flux", "host_classes", "host_spec", "joint", "ltx", "lumina",
    "mmdit", "named_spec", "omnigen", "others", "qwen", "shapes", "video", "wan",
]  # fmt: skip
