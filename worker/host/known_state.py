"""What ComfyUI's side knows of the state of a session's ranks, so that it sends nothing that they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..wire.protocol import Header
from .sent_conditions import SentConditions


@dataclass
class KnownState:
    """What the ranks hold; at first, and after a lack of memory, that is nothing.

    model: its source and plan, as JSON objects; None also while it is in doubt. additions: the key of those to its
    weights; None for none, empty while it is not known. remarks: sentences about the plan, for the status.
    name: of the model, as the person chose it, likewise. arguments: ComfyUI's, which a rank imports once; None before.
    """

    model: tuple[Header, Header] | None = None
    additions: str | None = None
    conditions: SentConditions = field(default_factory=SentConditions)
    remarks: Sequence[Header] = ()
    name: str = ""
    arguments: list[str] | None = None

    def emptied(self) -> KnownState:
        """Of ranks that hold nothing any more; what they have imported stays."""
        return KnownState(arguments=self.arguments)

    def note_import(self, source: Header) -> None:
        """Of what is loaded by ComfyUI's code."""
        if self.arguments is None:
            self.arguments = source.get("arguments")

    def imports_otherwise(self, source: Header) -> bool:
        """Whether the ranks have ComfyUI with other arguments than this source is to be loaded with."""
        return None not in (self.arguments, own := source.get("arguments")) and self.arguments != own
