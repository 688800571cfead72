"""Sends all model calls of a step as one request, although ComfyUI makes one call after the other.

The step runs twice: the first run records its calls, the second run gets their results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from ..wire.tensors import Tensors
from ..wire.tree import pack
from .known_state import find_equal

Result = TypeVar("Result")
Answer = list[torch.Tensor]


class CallRecorded(Exception):
    """A call was recorded. It has no result yet."""


class BatchedCall(NamedTuple):
    """args: latents and timestep. branches: the branch of each row, in order; 0 is cond."""

    args: list[Any]
    kwargs: dict[str, Any]
    branches: list[int]

    @property
    def size(self) -> int:
        """The batch size."""
        latents = self.args[0]
        return len(latents[0] if isinstance(latents, (list, tuple)) else latents)

    def is_like(self, other: BatchedCall) -> bool:
        """Whether both calls have equal values. Raises UnsendableError."""
        mine: Tensors = {}
        others: Tensors = {}
        if pack(self[:2], "", mine) != pack(other[:2], "", others):
            return False
        return all(find_equal([(mine[path], others[path]) for path in mine]))


def order_branches(calls: Sequence[BatchedCall], degree: int) -> list[int]:
    """Returns the indices of a step's calls in the order in which the ranks get them. degree: of the plan's cfg.

    If ranks share them out, uncond comes first, as in a batch of ComfyUI's, so that each rank always gets the same.
    Else the order stays: nodes' functions may count their calls.
    """
    indices = range(len(calls))
    return sorted(indices, key=lambda index: calls[index].branches, reverse=True) if degree > 1 else [*indices]


@dataclass(eq=False)
class CallBatcher:
    """Sends the calls of a step together.

    send: asks the ranks. runs_in_parallel: whether the ranks would run several calls at the same time.
    calls, answers: of the running step: calls are recorded first, and then each is answered once.
    is_recording: whether calls are never sent, see `record`.
    """

    send: Callable[[list[BatchedCall]], list[Answer]]
    runs_in_parallel: Callable[[], bool]
    calls: list[BatchedCall] | None = None
    answers: list[Answer] | None = None
    is_recording: bool = False

    def __deepcopy__(self, _memo: Any) -> CallBatcher:
        """Nodes deep-copy the options of a model, which lead here."""
        return self

    def answer(self, call: BatchedCall) -> Answer:
        """Returns the model's result for a call. Raises CallRecorded where the caller has to call again."""
        calls, answers = self.calls or [], self.answers
        if self.calls is not None and answers is None:
            self.calls.append(call)
            raise CallRecorded
        index = next((index for index, known in enumerate(calls) if known.is_like(call)), None)
        if index is None or answers is None:
            return self.send([call])[0]
        del calls[index]
        return answers.pop(index)

    @contextmanager
    def record(self) -> Iterator[list[BatchedCall]]:
        """While entered, calls are recorded and never sent."""
        calls = self.calls = []
        self.is_recording = True
        try:
            yield calls
        finally:
            self.calls, self.is_recording = None, False

    def run(self, step: Callable[[], Result]) -> Result:
        """Runs a step that calls the model, and returns its result. The step may run twice."""
        if self.calls is not None or not self.runs_in_parallel():
            return step()
        calls = self.calls = []
        try:
            result = step()
            if not calls:
                return result
            self.answers = self.send(calls)
            return step()
        except CallRecorded:  # from a model whose `apply_model` is not ComfyUI's
            self.calls = None
            return step()
        finally:
            self.calls = self.answers = None
