"""The seams of a model that is called from outside with whatever it takes (ComfyUI's own classes)."""
