"""What ComfyUI's side knows about a session's ranks, so that it sends nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..wire.protocol import Header
from .sent_conditions import SentConditions


@dataclass
class KnownState:
    """What the ranks hold: nothing at first, and nothing after they ran out of memory.

    model: its source and plan, as JSON objects; None also while it is uncertain. patches: the key of the changes to
    its weights; None for no changes, empty while it is uncertain. remarks: sentences about the plan, for the status.
    name: of the model, as the person chose it, for the status. arguments: ComfyUI's arguments when the ranks imported
    it; None before that. kernels: by name, why the ranks do not attend by a kernel under this plan; empty if they do.
    is_parked: whether the ranks dropped the model because it was parked, as CPU ranks do.
    """

    model: tuple[Header, Header] | None = None
    patches: str | None = None
    conditions: SentConditions = field(default_factory=SentConditions)
    remarks: Sequence[Header] = ()
    name: str = ""
    arguments: list[str] | None = None
    kernels: dict[str, str] = field(default_factory=dict)
    is_parked: bool = False

    def emptied(self, is_parked: bool = False) -> KnownState:
        """Returns the state of the same ranks without model and conditions. What they imported stays."""
        return KnownState(arguments=self.arguments, is_parked=is_parked)

    def note_import(self, source: Header) -> None:
        """Notes ComfyUI's arguments, if this source is loaded by ComfyUI's code."""
        if self.arguments is None:
            self.arguments = source.get("arguments")

    def needs_other_import(self, source: Header) -> bool:
        """Whether the ranks imported ComfyUI with other arguments than this source needs."""
        return None not in (self.arguments, own := source.get("arguments")) and self.arguments != own
