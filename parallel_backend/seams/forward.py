"""What one forward of the model is of, for the hooks on the model to read; and where they find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .attention import StaleCache
    from .beside import Later


@dataclass
class Forward:
    """One forward of the model on this rank. The fields from `segments` on are for the hooks, and end with it."""

    # The segments that run: all, or PipeFusion's patch.
    running: list[int]
    # Keys and values of the tokens that do not run; None where all do.
    cache: StaleCache | None = None
    # Of a run's steps, the one that this is of.
    step: int = 0
    # Of the step's forwards, which this is: cond and uncond may run apart.
    index: int = 0
    # Of the image, where it falls into patches.
    image_tokens: int = 0
    # What a rank without rows of the batch does where the others come to an agreement behind their first block.
    absent: Callable[[], None] | None = None
    # By stream, the lengths of all its segments, known once the streams reach the first block.
    segments: dict[str, list[int]] = field(default_factory=dict)
    # By name, a side input of the blocks, and this rank's share of it.
    sides: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    # By whose they are and where they lie, the places of tokens in whole streams.
    orders: dict[tuple, torch.Tensor] = field(default_factory=dict)
    # Whether a step cache has passed by the block that was called last.
    passed: bool = False
    # Whether the tokens of all ranks have come together, where not the head's alone do.
    gathered: bool = False
    # By place of the block that made it, what skips to or from another stage.
    skips: dict[int, torch.Tensor] = field(default_factory=dict)
    # What the running block has put off.
    later: list[Later] = field(default_factory=list)

    def catch_up(self) -> None:
        """Does what was put off, while something travels."""
        while self.later:
            self.later.pop(0).get()


class ForwardSlot:
    """Holds the forward that runs. The hooks of one transformer share a slot; forwards run one at a time.

    patches: into how many segments the image falls. Where somebody else calls the model, and so enters none, all run.
    """

    def __init__(self, patches: int = 1) -> None:
        self.patches = patches
        self.forward = Forward(self.every_segment())

    def every_segment(self) -> list[int]:
        return list(range(self.patches))

    @contextmanager
    def enter(self, forward: Forward) -> Iterator[None]:
        """While entered, this is the forward that runs."""
        outside, self.forward = self.forward, forward
        try:
            yield
        finally:
            self.forward = outside
