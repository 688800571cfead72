"""What a diffusion model is called with goes over as it is, or is refused by its path."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

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
        ({"grid": {(0, 1): 2}}, "kwargs.grid has keys that are no text"),
    ],
)
def test_what_is_no_data_is_refused_by_its_path(value: Any, words: str) -> None:
    with pytest.raises(UnsendableError, match=words):
        pack(value, "kwargs", {})


@pytest.mark.parametrize("packed", [{"tensor": "x", "tuple": []}, {"set": [1]}, {}, [{"unknown": 1}]])
def test_what_no_call_is_packed_to_is_refused(packed: Any) -> None:
    with pytest.raises(ValueError, match="no (value|kind)"):
        unpack(packed, {})


def test_a_tensor_that_did_not_come_is_missed() -> None:
    with pytest.raises(KeyError):
        unpack({"tensor": "kwargs.context"}, {})
