"""ComfyUI's names for the weights of a diffusers folder. Imported by `worker/comfyui` and by what may import that."""

from .convert import convert_names, list_classes, read_settings

__all__ = ["convert_names", "list_classes", "read_settings"]
