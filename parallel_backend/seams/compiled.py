"""Blocks that run through `torch.compile`: each block's own arithmetic, between the hooks that share it out.

Blocks of a kind have one graph. Attention over shared tokens stays outside of it, see `AttentionSeam`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..hooks import Hooks
from ..models.comfyui.spec import ALWAYS_WHOLE


class CompiledBlocks:
    """settings: arguments of `torch.compile`; with an empty mapping, nothing is compiled."""

    def __init__(self, blocks: Iterable[torch.nn.Module], settings: Mapping[str, Any]) -> None:
        self.settings = settings
        arguments = with_guards(settings)
        self.forwards = [(block, torch.compile(block.forward, **arguments)) for block in blocks if settings]

    @contextmanager
    def running(self) -> Iterator[None]:
        """While entered, the blocks run so."""
        hooks = Hooks()
        for block, forward in self.forwards:
            hooks.replace(block, "forward", forward)
        try:
            yield
        finally:
            hooks.remove()


def with_guards(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, and that a graph is for whatever the options say that every call has anew, as in ComfyUI.

    torch takes no options beside a mode; a graph is made anew then for each block.
    """
    if settings.get("mode"):
        return {name: value for name, value in settings.items() if name != "options"}
    return {**settings, "options": {**settings.get("options", {}), "guard_filter_fn": guards}}


def guards(entries: Iterable[Any]) -> list[bool]:
    return [ALWAYS_WHOLE not in entry.name for entry in entries]
