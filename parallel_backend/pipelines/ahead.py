"""Pairs the calls that a pipeline makes of its transformer one after the other, as for guidance in two calls.

Ranks can run two calls side by side only if both are known when the first is made. The first step teaches which
arguments follow which with the same latents and timestep. From the second step on, both run when the first is made.
What was computed ahead is used only if the pipeline then asks for exactly that, value by value. Else it is dropped, and
the call runs by itself. So a pipeline that does something else gets the right prediction, a little later.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..compat import list_tensors, tree_map_only, version_of
from ..seams.kept import is_equal
from .agreement import all_agree
from .arguments import TIMESTEP, ModelCall

MOST_FOLLOWERS = 4  # of which none was asked for twice


class Made(NamedTuple):
    """A call that was made. changed: copies of its latents and timestep. versions: how often its other tensors had been
    written to."""

    call: ModelCall
    changed: dict[str, Any]
    versions: list[int]

    @classmethod
    def of(cls, call: ModelCall) -> Made:
        return cls(call, tree_map_only(torch.Tensor, torch.clone, call.changing), versions_of(call))

    def has_inputs_of(self, call: ModelCall) -> bool:
        """Whether another call has the same latents and timestep."""
        names = self.changed.keys()
        return names == call.changing.keys() and all(same(self.changed[name], call.changing[name]) for name in names)

    def is_the_same(self, call: ModelCall) -> bool:
        """Whether another call has the same arguments, and nobody has written into them."""
        return self.call.key == call.key and self.versions == versions_of(call) and self.has_inputs_of(call)


class CallsAhead:
    """What a pipeline is expected to ask for next.

    most: how many calls are made at the same time. why: why the pipeline's calls do not run side by side, once that is
    known; empty if they do. expected: calls that were made ahead, with their predictions. last: the call before, which
    nobody expected. is_useful: whether calls were made ahead in this sampling.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.forget()

    def forget(self) -> None:
        """Begins a sampling."""
        self.followers: dict[tuple, ModelCall] = {}
        self.expected: list[tuple[Made, torch.Tensor]] = []
        self.last: Made | None = None
        self.is_useful = False
        self.why = ""

    def take(self, call: ModelCall) -> torch.Tensor | None:
        """Returns the prediction of a call if it was made ahead. All ranks decide alike."""
        if not self.expected:
            return None
        (made, prediction), *self.expected = self.expected
        if all_agree(made.is_the_same(call)):
            self.last = None
            return prediction
        self.expected, self.followers = [], {}
        return None

    def with_followers(self, call: ModelCall) -> list[ModelCall]:
        """Returns the calls to make now: this one, and those that are expected to follow it in the same step."""
        calls = [call]
        if self.most == 1 or self.learn(call):
            return calls
        while len(calls) < self.most and (follower := self.followers.get(calls[-1].key)):
            calls.append(ModelCall(call.changing, follower.constant))
        return calls

    def learn(self, call: ModelCall) -> bool:
        """Learns what follows the call before this one. Returns whether this one is of the same step."""
        before, self.last = self.last, Made.of(call)
        if before is None:
            return False
        if all_agree(before.call.key != call.key and before.has_inputs_of(call)):
            if len(self.followers) == MOST_FOLLOWERS and not self.is_useful:
                self.followers = {}
                self.why = "more than latents and timestep changes from step to step"
            self.followers[before.call.key] = call
            return True
        if not self.is_useful:
            self.explain(before, call)
        return False

    def explain(self, before: Made, call: ModelCall) -> None:
        """Notes why two calls, one after the other, are not of the same step."""
        if before.call.key == call.key:
            self.why = self.why or "it calls the model once a step"
            return
        other = [name for name, value in before.changed.items() if not same(value, call.changing.get(name))]
        if not any(name in TIMESTEP for name in other):
            self.why = f"its calls of a step differ in {' and '.join(other)}"

    def keep(self, calls: list[ModelCall], predictions: list[torch.Tensor]) -> None:
        """Keeps the predictions of calls that were made ahead."""
        self.expected = [(Made.of(call), each) for call, each in zip(calls, predictions, strict=True)]
        self.is_useful = self.is_useful or bool(calls)


def same(one: Any, other: Any) -> bool:
    """Whether two arguments are equal: tensors, lists of them, or numbers."""
    if type(one) is not type(other):
        return False
    if torch.is_tensor(one):
        return is_equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def versions_of(call: ModelCall) -> list[int]:
    return list(map(version_of, list_tensors(call.constant)))
