"""Tensors in a frame: they arrive as they were; broken ones are refused."""

import pytest
import torch

from worker.wire.protocol import decode, encode
from worker.wire.tensors import DTYPES, from_buffer

CASES = {
    "one": {"x": torch.randn(2, 3, 5)},
    "scalar and empty": {"step": torch.tensor(7), "none": torch.empty(0, 4)},
    "a view": {"x": torch.randn(4, 6).T[1:]},
    "repeated": {"once": torch.tensor(0.5).expand(1), "once in a row": torch.randn(1, 4)[:, :1].expand(1, 1, 1)}
    | {"more": torch.randn(3, 1).expand(3, 2)},
    "odd sizes": {
        "flags": torch.ones(3, dtype=torch.bool),
        "half": torch.randn(3).half(),
        "wide": torch.randn(5).double(),
    },
    "every dtype": {str(dtype): torch.ones(3).to(dtype) for dtype in DTYPES.values()},
}


@pytest.mark.parametrize("tensors", CASES.values(), ids=CASES)
def test_tensors_arrive_as_they_were(tensors):
    header, read = decode(bytearray().join(encode({"op": "x"}, tensors)))
    assert header == {"op": "x"} and read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert read[name].double().equal(tensor.double())


@pytest.mark.parametrize(
    ("described", "size"),
    [
        ([1], 8),
        ({"x": 1}, 8),
        ({"x": ["F32"]}, 8),
        ({"x": ["O", [2]]}, 8),
        ({"x": [[], [2]]}, 8),
        ({"x": ["F32", 2]}, 8),
        ({"x": ["F32", [-2]]}, 8),
        ({"x": ["F32", [1 << 62, 1 << 62]]}, 8),
        ({"x": ["F32", ["2"]]}, 8),
        ({"x": ["F32", [True, 2]]}, 8),
        ({"x": ["F32", [2.0]]}, 8),
        ({"x": ["F32", [1] * 40 + [2]]}, 8),
        ({"x": ["F32", [0, 1 << 63]]}, 0),
        ({"x": ["F32", [0, 1 << 40, 1 << 40]]}, 0),
        ({"x": ["F32", [4]]}, 8),
        ({"x": ["F32", [2]]}, 9),
        ({"x": ["F32", [2]], "y": ["F32", [2]]}, 8),
        ({}, 1),
    ],
)
def test_tensors_that_do_not_fit_their_bytes_are_refused(described, size):
    with pytest.raises(ValueError):
        from_buffer(described, memoryview(bytearray(size)))
