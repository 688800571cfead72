"""What a diffusion model is called with goes over as it is, or is refused by its path; a step's calls go as one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worker.host.call_batcher import Answer, BatchedCall, CallBatcher, CallRecorded
from worker.wire.tensors import Tensors, UnsendableError
from worker.wire.tree import pack, unpack

CALL = {
    "context": torch.arange(6.0).reshape(1, 2, 3),
    "ref_latents": [torch.zeros(1, 4), torch.ones(1, 4)],
    "control": {"input": [None, torch.ones(2)], "output": []},
    "transformer_options": {"cond_or_uncond": [0, 1], "scales": (1.0, None), "name": "x", "tensor": True},
}


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(alike(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    return type(a) is type(b) and a == b


def test_a_call_comes_back_from_json_and_tensors_as_it_was() -> None:
    tensors: Tensors = {}
    packed = json.loads(json.dumps(pack(CALL, "kwargs", tensors)))
    assert alike(unpack(packed, tensors), CALL)
    assert {"kwargs.context", "kwargs.ref_latents.1", "kwargs.control.input.1"} <= tensors.keys()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"patches": {"dit": [print]}}, "kwargs.patches.dit.0 is a builtin_function_or_method"),
        ({"entries": [SimpleNamespace()]}, "kwargs.entries.0 is a SimpleNamespace"),
        ({"grid": {(0, 1): 2}}, "kwargs.grid has keys that are not text"),
    ],
)
def test_what_is_no_data_is_refused_by_its_path(value: Any, words: str) -> None:
    with pytest.raises(UnsendableError, match=words):
        pack(value, "kwargs", {})


class Asked:
    """Stands for the ranks: doubles what it is asked about, and keeps how many calls came at a time."""

    def __init__(self, gains: bool = True) -> None:
        self.counts: list[int] = []
        self.batcher = CallBatcher(self.send, lambda: gains)

    def send(self, calls: list[BatchedCall]) -> list[Answer]:
        self.counts.append(len(calls))
        return [[2 * call.args[0]] for call in calls]

    def double(self, value: torch.Tensor, branch: int = 0, **kwargs: Any) -> torch.Tensor:
        """As ComfyUI calls a model, with zeros for what is not there yet."""
        try:
            (answer,) = self.batcher.answer(BatchedCall([value, torch.ones(1)], kwargs, [branch]))
        except CallRecorded:
            return torch.zeros_like(value)
        return answer


ONE, OTHER = torch.ones(1, 2), torch.full((1, 3), 5.0)


@pytest.mark.parametrize(("gains", "counts"), [(True, [2]), (False, [1, 1])])
def test_the_calls_of_a_step_are_asked_for_at_once_where_that_gains(gains: bool, counts: list[int]) -> None:
    asked = Asked(gains)
    for _ in range(2):
        one, other = asked.batcher.run(lambda: (asked.double(ONE, context=OTHER), asked.double(OTHER)))
        assert one.equal(2 * ONE) and other.equal(2 * OTHER)
    assert asked.counts == 2 * counts


def test_a_call_that_is_another_by_then_is_asked_for_by_itself() -> None:
    """Of the second, what it is about comes of the first; the third is of other text each time."""
    asked, texts = Asked(), iter([ONE, 3 * ONE])
    results = asked.batcher.run(
        lambda: [value := asked.double(ONE), asked.double(value), asked.double(ONE, context=next(texts))]
    )
    assert [result.tolist() for result in results] == [[[2.0, 2.0]], [[4.0, 4.0]], [[2.0, 2.0]]]
    assert asked.counts == [3, 1, 1]


def test_alike_calls_are_answered_once_each() -> None:
    asked = Asked()
    assert asked.batcher.run(lambda: asked.double(ONE) + asked.double(ONE)).equal(4 * ONE)
    assert asked.counts == [2]


def test_code_that_does_not_bear_a_call_without_a_result_is_run_as_ever() -> None:
    asked = Asked()
    (result,) = asked.batcher.run(lambda: asked.batcher.answer(BatchedCall([ONE, ONE], {}, [0])))
    assert result.equal(2 * ONE)
    assert asked.counts == [1]
