"""What ComfyUI's side knows about a session's ranks, so that it sends nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..wire.protocol import Header
from .sent_conditions import SentConditions


@dataclass
class KnownState:
    """What the ranks hold: nothing at first, and nothing after they ran out of memory.

    model: the source and plan of the one in use, as JSON objects; None also while ranks load it. patched, run: as the
    last reply says, the key of the changes to its weights, and the sampling whose objects it has, see `Decoder`; empty
    for none. remarks: sentences about the plan, for the status. name: of the model, as the person chose it, for the
    status. arguments: ComfyUI's arguments when the ranks imported it; None before that. is_parked: whether the ranks
    dropped all because it was parked, as CPU ranks do, and have got nothing since.
    """

    model: tuple[Header, Header] | None = None
    patched: str = ""
    run: str = ""
    conditions: SentConditions = field(default_factory=SentConditions)
    remarks: Sequence[Header] = ()
    name: str = ""
    arguments: list[str] | None = None
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
