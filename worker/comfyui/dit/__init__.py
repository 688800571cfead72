"""The class-conditional DiT, which ComfyUI lacks: its module, ComfyUI's model of it, and its folder."""
