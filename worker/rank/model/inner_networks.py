"""Lets networks that nodes run inside of the model compute this rank's tokens. They are ComfyUI's own classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parallel_backend.hooks import Hooks
from parallel_backend.parallel_model import ParallelModel


class InnerNetworks:
    """The networks that have the plan's hooks."""

    def __init__(self, model: ParallelModel) -> None:
        """model: inside of which they run."""
        self.model = model
        self.hooks: dict[Any, Hooks] = {}  # by ComfyUI's patcher

    def share(self, patchers: Iterable[Any]) -> None:
        """Applies the plan to networks that have none. Runs no collectives. Raises PlanError for a network whose class
        is not the one that is known."""
        for patcher in patchers:
            if patcher not in self.hooks:
                self.hooks[patcher] = self.model.share_inside(patcher.model, self.model.dtype)

    def clear(self) -> None:
        """Takes the plan off all networks."""
        for hooks in self.hooks.values():
            hooks.remove()
        self.hooks.clear()
