"""Functions and objects of nodes, as data between ComfyUI's process and the ranks, made from the same files."""
