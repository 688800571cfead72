"""Uses ComfyUI's own code for model files, in ComfyUI's process and in the ranks alike.

Functions import ComfyUI's modules themselves, because a rank learns only from a request where ComfyUI is.
"""
