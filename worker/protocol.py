"""Frames on the socket between ComfyUI and rank 0: a length-capped JSON header and a safetensors payload.

    magic 4s | version u16 | header length u32 | payload length u64 | header | payload     (big-endian)

No pickle anywhere. Both lengths are checked against their caps before a byte is allocated for them.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

MAGIC = b"PDiT"
VERSION = 1
PREFIX = struct.Struct("!4sHIQ")
MAX_HEADER = 8 << 20
MAX_PAYLOAD = 8 << 30

Header = dict[str, Any]
Tensors = dict[str, torch.Tensor]


class ProtocolError(RuntimeError):
    """A frame that this version does not speak, or that is over a cap or malformed."""


class ConnectionClosed(ConnectionError):
    """The other side has gone."""


def encode(header: Header, tensors: Tensors | None = None) -> bytes:
    """One frame as bytes. Tensors may lie on any device; they arrive on the CPU, contiguous."""
    payload = b""
    if tensors:
        payload = save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    text = json.dumps(header).encode()
    return PREFIX.pack(MAGIC, VERSION, len(text), len(payload)) + text + payload


def read_prefix(prefix: bytes) -> tuple[int, int]:
    """Header and payload length. Raises ProtocolError for a foreign, newer, or oversized frame."""
    magic, version, header_length, payload_length = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise ProtocolError(f"Not a frame of this protocol: it starts with {magic!r}.")
    if version != VERSION:
        raise ProtocolError(f"The other side speaks protocol version {version}, this one {VERSION}; restart ComfyUI.")
    if header_length > MAX_HEADER or payload_length > MAX_PAYLOAD:
        raise ProtocolError(
            f"A frame of {header_length} + {payload_length} bytes is over the caps of {MAX_HEADER} + {MAX_PAYLOAD}."
        )
    return header_length, payload_length


def decode(frame: bytes | bytearray) -> tuple[Header, Tensors]:
    """Header and tensors of a whole frame. Raises ProtocolError if it is malformed."""
    header_length, payload_length = read_prefix(bytes(frame[: PREFIX.size]))
    body = memoryview(frame)[PREFIX.size :]
    if len(body) != header_length + payload_length:
        raise ProtocolError(f"A frame of {len(body)} bytes announces {header_length + payload_length}.")
    try:
        header = json.loads(bytes(body[:header_length]))
        tensors = load_tensors(bytes(body[header_length:])) if payload_length else {}
    except (ValueError, SafetensorError) as error:
        raise ProtocolError(f"A malformed frame: {error}") from error
    if not isinstance(header, dict):
        raise ProtocolError("A malformed frame: its header is no JSON object.")
    return header, tensors


def receive_frame(connection: socket.socket, max_length: int = MAX_HEADER + MAX_PAYLOAD) -> bytearray:
    """Reads one frame, blocking.

    Raises ConnectionClosed when the other side has gone and ProtocolError for a frame that must not be read.
    """
    prefix = _receive_exactly(connection, PREFIX.size)
    length = sum(read_prefix(bytes(prefix)))
    if length > max_length:
        raise ProtocolError(f"A frame of {length} bytes is over the cap of {max_length}.")
    return prefix + _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, length: int) -> bytearray:
    buffer = bytearray(length)
    view, received = memoryview(buffer), 0
    while received < length:
        try:
            count = connection.recv_into(view[received:])
        except ConnectionError as error:
            raise ConnectionClosed("The connection broke.") from error
        if not count:
            raise ConnectionClosed("The other side closed the connection.")
        received += count
    return buffer
