"""Frames and headers gone wrong: what a broken, other, or hostile program might send."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import torch

from tests.support.group.direct_group import DIT, call_request, sample_request
from worker.wire.protocol import MAGIC, PREFIX, TENSORS, VERSION, Header, encode
from worker.wire.tensors import Tensors

# As a shape, a size, an offset, a key, an operation, a length: what such a thing must not be taken for.
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 1.0, -0.5, 1e308, float("inf"), float("nan"), 1 << 31, 1 << 62, 1 << 63, 1 << 200,
    "", "x", "load", "stop", "\0", "\ud800", "../../etc/passwd", "__class__", "é" * 40,
    [], [[]], [-1], [1 << 62, 1 << 62], [0, 1 << 63], [True], [2.0], ["2"], [1] * 100, {}, {"op": "load"}, {"": []},
)  # fmt: skip
ODD_TEXTS = (
    b"", b" ", b"{", b"null", b"[]", b'"op"', b"1", b"{}", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b'{"op": "\xc3"}', b"{\0}",
    b'{"op": 1, "op": 2}', b'{"op": NaN}', b"[" * 5000, b'{"a":' * 5000, b'{"op": "\\ud800"}', "{}".encode("utf-16"),
    b"1" * 5000, b'{"op": ' + b"9" * 5000 + b"}",
)  # fmt: skip
LENGTHS = (0, 1, 7, 8, 9, 17, 255, 4096, 1 << 16, (8 << 20) + 1, (1 << 32) - 1)
PAYLOADS = (*LENGTHS, 1 << 33, (1 << 33) + 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def real_frames() -> list[bytes]:
    """Requests, replies and events of the job channel, as they are sent."""
    latents, text = torch.randn(1, 4, 4, 4), torch.randn(1, 3, 8)
    frames: list[tuple[Header, Tensors]] = [
        call_request(DIT),
        sample_request(DIT, steps=4),
        ({"op": "load", "id": 1, "source": {"model_class": "DiT", "file": "/x"}, "plan": {"ulysses": 2}}, {}),
        (
            {"op": "patch", "id": 4, "patches": {"p": [[0.5, "", {"tensor": "u"}, 1.0, None, False]]}},
            {"u": text.bfloat16()},
        ),
        ({"id": 3, "event": "step", "step": 0, "steps": 4, "timestep": float("-inf")}, {"denoised": latents}),
        ({"id": 3}, {"latents": latents, "none": torch.empty(0, 4), "flags": torch.ones(3, dtype=torch.bool)}),
        ({"id": 3, "error": {"cause": "No.", "advice": "", "details": ""}, "kind": "refused"}, {}),
    ]
    return [b"".join(encode(*each)) for each in frames]


def mutate(frame: bytes, chance: random.Random) -> bytes:
    """The frame with one thing wrong, or a few."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        frame = chance.choice(MUTATIONS)(frame, chance)
    return frame


def flip_bits(frame: bytes, chance: random.Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(chance.choice((1, 2, 8))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def remove_piece(frame: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(frame) + 1)
    return frame[:start] + frame[start + chance.randrange(1, 20) :]


def other_lengths(frame: bytes, chance: random.Random) -> bytes:
    """Other lengths in the prefix, of which now and then none is wrong."""
    if len(frame) < PREFIX.size:
        return frame
    magic, version, header, payload = PREFIX.unpack(frame[: PREFIX.size])
    prefix = chance.choice(
        (
            (magic, version, chance.choice(LENGTHS), payload),
            (magic, version, header, chance.choice(PAYLOADS)),
            (magic, version, min(header + payload, (1 << 32) - 1), 0),
            (magic, version, 0, min(header + payload, (1 << 64) - 1)),
            (magic, chance.choice((0, 2, 65535)), header, payload),
            (chance.choice((b"HTTP", b"\x80\x04\x95.", b"\0\0\0\0")), version, header, payload),
        )
    )
    return PREFIX.pack(*prefix) + frame[PREFIX.size :]


def other_header(frame: bytes, chance: random.Random) -> bytes:
    """Well framed, with another header."""
    header, payload = parts(frame)
    text = chance.choice(ODD_TEXTS) if chance.random() < 0.5 else json.dumps(mutate_json(header, chance)).encode()
    return framed(text, payload)


def other_tensors(frame: bytes, chance: random.Random) -> bytes:
    """Well framed, with another description of the tensors."""
    header, payload = parts(frame)
    if not isinstance(header, dict) or not header.get(TENSORS):
        return framed(json.dumps(header).encode(), chance.randbytes(chance.choice((1, 8, 20))))
    return framed(json.dumps({**header, TENSORS: mutate_json(header[TENSORS], chance)}).encode(), payload)


MUTATIONS = (
    lambda frame, chance: frame[: chance.randrange(len(frame) + 1)],
    lambda frame, chance: frame + chance.randbytes(chance.choice((1, 8, 100))),
    *(flip_bits, remove_piece, other_lengths, other_header, other_tensors, other_tensors),
)


def parts(frame: bytes) -> tuple[Any, bytes]:
    """Header and payload of a frame, as far as there are any."""
    if len(frame) < PREFIX.size:
        return {}, b""
    length = PREFIX.unpack(frame[: PREFIX.size])[2]
    body = frame[PREFIX.size :]
    try:
        return json.loads(body[:length]), body[length:]
    except (ValueError, RecursionError):
        return {}, body[length:]


def framed(header: bytes, payload: bytes) -> bytes:
    return PREFIX.pack(MAGIC, VERSION, len(header), len(payload)) + header + payload


def mutate_json(value: Any, chance: random.Random) -> Any:
    """A copy with an entry changed, missing, or too many, at any depth."""
    value = copy.deepcopy(value)
    inner = value
    while isinstance(inner, dict | list) and inner:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        deeper = [key for key in keys if isinstance(inner[key], dict | list) and inner[key]]
        if deeper and chance.random() < 0.6:
            inner = inner[chance.choice(deeper)]
            continue
        key = chance.choice(keys)
        how = chance.random()
        if how < 0.25:
            del inner[key]
        elif how < 0.35 and isinstance(inner, dict):
            inner[chance.choice(("", "x", "op", "__metadata__", "\0"))] = chance.choice(ODD_VALUES)
        else:
            inner[key] = chance.choice(ODD_VALUES)
        return value
    return chance.choice(ODD_VALUES)
