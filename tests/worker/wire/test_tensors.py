"""Tensors in a frame: the safetensors package reads what we write, and we what it writes; broken ones are refused."""

import json
import struct

import pytest
import safetensors.torch
import torch

from worker.wire.tensors import DTYPES, from_buffer, to_buffers

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


def assert_same(read, written):
    assert read.keys() == written.keys()
    for name, tensor in written.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert read[name].double().equal(tensor.double())


@pytest.mark.parametrize("tensors", CASES.values(), ids=CASES)
def test_the_package_reads_what_we_write_and_we_what_it_writes(tensors):
    blob = bytearray().join(to_buffers(tensors))
    assert_same(safetensors.torch.load(bytes(blob)), tensors)
    assert_same(from_buffer(blob), tensors)
    written = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    assert_same(from_buffer(bytearray(written)), tensors)


def blob(header, data=b"\0" * 8):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 2) + b"{",
        struct.pack("<Q", 2) + b"{)",
        blob([1]),
        blob({"x": 1}),
        blob({"x": {**GOOD, "dtype": "O"}}),
        blob({"x": {**GOOD, "shape": [-2]}}),
        blob({"x": {**GOOD, "shape": [1 << 62, 1 << 62]}}),
        blob({"x": {**GOOD, "shape": ["2"]}}),
        blob({"x": {**GOOD, "shape": [True, 2]}}),
        blob({"x": {**GOOD, "shape": [2.0]}}),
        blob({"x": {**GOOD, "shape": [1] * 40 + [2]}}),
        blob({"x": {**GOOD, "data_offsets": [False, 8]}}),
        blob({"x": {**GOOD, "shape": [0, 1 << 63], "data_offsets": [0, 0]}}, b""),
        blob({"x": {**GOOD, "shape": [0, 1 << 40, 1 << 40], "data_offsets": [0, 0]}}, b""),
        struct.pack("<Q", 9 << 20) + b" " * (9 << 20),
        blob({"x": {**GOOD, "data_offsets": [0, 4]}}),
        blob({"x": {**GOOD, "data_offsets": [4, 12]}}),
        blob({"x": {**GOOD, "data_offsets": [-8, 0]}}),
        blob({"x": {**GOOD, "shape": [4], "data_offsets": [0, 16]}}),
        blob({"x": GOOD}, b"\0" * 9),
        blob({"x": GOOD, "y": GOOD}),
    ],
)
def test_a_broken_blob_is_refused(broken):
    with pytest.raises(ValueError):
        from_buffer(broken)
