"""ComfyUI's models in a rank, with the functions and networks that nodes add to them."""
