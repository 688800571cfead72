"""ComfyUI's models in a rank, with what nodes put inside of them and beside them."""
