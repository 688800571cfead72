"""What ComfyUI's side knows about a session's ranks, so that it sends nothing twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..wire.protocol import Header
from .sent_conditions import SentConditions

UNKNOWN = ""


@dataclass
class KnownState:
    """What the ranks hold: nothing at first, and nothing after they ran out of memory.

    model: the source and plan of the one in use, as JSON objects; None also while ranks load it. patches: by a model's
    source, the key of the changes to its weights; None for no changes, UNKNOWN while ranks make them. run: the sampling
    whose objects the model in use has or gets with the next request, see `Decoder`; UNKNOWN for none. remarks:
    sentences about the plan, for the status. name: of the model, as the person chose it, for the status. arguments:
    ComfyUI's arguments when the ranks imported it; None before that. kernels: by name, why the ranks do not attend by a
    kernel under this plan; empty if they do. is_parked: whether the ranks dropped all because it was parked, as CPU
    ranks do, and have got nothing since.
    """

    model: tuple[Header, Header] | None = None
    patches: dict[str, str | None] = field(default_factory=dict)
    run: str = UNKNOWN
    conditions: SentConditions = field(default_factory=SentConditions)
    remarks: Sequence[Header] = ()
    name: str = ""
    arguments: list[str] | None = None
    kernels: dict[str, str] = field(default_factory=dict)
    is_parked: bool = False

    @property
    def patched(self) -> str | None:
        """The key of the changes to the weights of the model in use."""
        return self.patches.get(self.key)

    @patched.setter
    def patched(self, key: str | None) -> None:
        self.patches[self.key] = key

    @property
    def key(self) -> str:
        """Tells the model in use from others."""
        return json.dumps(self.model and self.model[0], sort_keys=True)

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
