"""ComfyUI's names for a diffusers folder's weights. `worker/comfyui`, and what may import it, may import this."""

from .convert import TABLES, convert_names, read_settings

__all__ = ["TABLES", "convert_names", "read_settings"]
