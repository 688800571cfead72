"""The calls of a model within a step as one request, made of code that makes one after the other: it runs twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch

from ..wire.tensors import Tensors
from ..wire.tree import pack_call

Result = TypeVar("Result")
Answer = list[torch.Tensor]


class Recorded(Exception):
    """A call was written down, and has no result yet."""


class ModelCall(NamedTuple):
    """args: latents and timestep. branches: of its rows, one after the other, 0 being cond."""

    args: list[Any]
    kwargs: dict[str, Any]
    branches: list[int]

    @property
    def size(self) -> int:
        """Of the batch."""
        latents = self.args[0]
        return len(latents[0] if isinstance(latents, (list, tuple)) else latents)

    def is_like(self, other: ModelCall) -> bool:
        """Whether the two are of the same values. Raises UnsendableError."""
        mine: Tensors = {}
        others: Tensors = {}
        if pack_call(self[:2], "", mine) != pack_call(other[:2], "", others):
            return False
        return all(mine[path].dtype == others[path].dtype and mine[path].equal(others[path]) for path in mine)


@dataclass
class Gathering:
    """The calls of a step: written down until there are answers."""

    calls: list[ModelCall] = field(default_factory=list)
    answers: list[Answer] | None = None

    def take(self, call: ModelCall) -> Answer | None:
        """The answer to this call, once; None if it was not written down. Raises Recorded while that is done."""
        if self.answers is None:
            self.calls.append(call)
            raise Recorded
        place = next((place for place, known in enumerate(self.calls) if known.is_like(call)), None)
        if place is None:
            return None
        del self.calls[place]
        return self.answers.pop(place)


class Gatherer:
    """Has the calls of a model's step go as one. send: asks the ranks. gains: whether they would share out several."""

    def __init__(self, send: Callable[[list[ModelCall]], list[Answer]], gains: Callable[[], bool]) -> None:
        self.send = send
        self.gains = gains
        self.gathering: Gathering | None = None

    def answer(self, call: ModelCall) -> Answer:
        """What the model returns for a call. Raises Recorded where the caller is to come again."""
        found = self.gathering and self.gathering.take(call)
        return found or self.send([call])[0]

    def run(self, step: Callable[[], Result]) -> Result:
        """What a step returns that makes calls of the model, and may be made twice."""
        if self.gathering is not None or not self.gains():
            return step()
        gathering = self.gathering = Gathering()
        try:
            result = step()
            if not gathering.calls:
                return result
            gathering.answers = self.send(gathering.calls)
            return step()
        except Recorded:  # by a model whose `apply_model` is not ComfyUI's
            self.gathering = None
            return step()
        finally:
            self.gathering = None
