"""What is put on a model that is somebody else's, kept so that all of it can be taken off again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NOTHING = object()


class Hooks:
    """Hooks on modules, and attributes in place of their own; `remove` leaves none of them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def before(self, module: torch.nn.Module, hook: Callable, **options: bool) -> None:
        """Registers a forward pre-hook, with torch's options."""
        self._undo.append(module.register_forward_pre_hook(hook, **options).remove)

    def after(self, module: torch.nn.Module, hook: Callable, **options: bool) -> None:
        """Registers a forward hook, with torch's options."""
        self._undo.append(module.register_forward_hook(hook, **options).remove)

    def replace(self, owner: object, name: str, value: Any) -> None:
        """Gives an object an attribute, in place of the one that it may have."""
        before = vars(owner).get(name, NOTHING)
        setattr(owner, name, value)
        self._undo.append(lambda: delattr(owner, name) if before is NOTHING else setattr(owner, name, before))

    def on_removal(self, undo: Callable[[], None]) -> None:
        """Has `remove` call this too, for a change of another kind."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Takes off everything, the last first."""
        while self._undo:
            self._undo.pop()()
