"""Private names of ComfyUI that the nodes use, each with the reason why no public name serves."""

from __future__ import annotations


def runs_wrappers(module: type) -> bool:
    """Whether the class of a diffusion model runs the wrappers of nodes. A few of ComfyUI's do not (SD3)."""
    forwards = (getattr(vars(cls).get("forward"), "__code__", None) for cls in module.__mro__)
    return any("WrapperExecutor" in code.co_names for code in forwards if code)
