"""ComfyUI's names for a diffusers folder's weights. `worker/comfyui`, and what may import it, may import this."""

from .convert import convert_names, list_classes, read_settings

__all__ = ["convert_names", "list_classes", "read_settings"]
