"""ComfyUI-ParallelDiT: one sampler call on many devices. Entry point for ComfyUI, nothing else."""

from .nodes import comfy_entrypoint

WEB_DIRECTORY = "./web"

__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
