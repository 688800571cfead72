"""The frames on the socket between ComfyUI and rank 0. Each has a JSON header and the bytes of tensors, whose names,
dtypes and shapes are in the header.

    magic 4s | version u16 | header length u32 | payload length u64 | header | payload     (big-endian)

Where both sides map memory (`job_channel.py`), the whole of a large frame is there. The socket then carries its prefix,
with a magic of its own.

Nothing is pickled. Both lengths are checked against their caps before memory is allocated.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..engine import device as devices
from ..errors import ConnectionClosed, Explained
from .json_object import parse_object
from .tensors import Buffer, Tensors, UnsendableError, WritableBuffer, from_buffer, to_pieces

MAGIC, IN_MEMORY = b"PDiT", b"PDiM"
VERSION = 31
FAILED, MEMORY = "failed", "memory"  # the kinds of errors after which the ranks have no model
NO_ROOM = "no room"  # the kind of an error for which ComfyUI's own model can run instead
NEVER, ONCE, IN_BLOCKS = "never", "once", "in blocks"  # when ranks exchange something in a forward, for the status
PREFIX = struct.Struct("!4sHIQ")
TENSORS = "tensors"  # the field of a header that describes the frame's
ALIGNMENT = 8  # of the tensors in a frame
MAX_HEADER = 8 << 20
MAX_PAYLOAD = 8 << 30
SOCKET_BYTES = 1 << 16  # a larger frame goes through memory, if both sides have it

Header = dict[str, Any]
Piece = Buffer | torch.Tensor
Memory = Callable[[int, torch.device | None], memoryview]


class ProtocolError(Explained, RuntimeError):
    """A frame is of another version, over a cap, or malformed."""


def encode(header: Header, tensors: Tensors | None = None) -> list[Piece]:
    """Returns one frame, in pieces. Tensors may be on any device; they arrive contiguous on the CPU. A piece that is a
    row of bytes on a device is copied when it is sent.

    Raises UnsendableError for what a frame cannot carry, before anything is sent.
    """
    described, payload = to_pieces(tensors or {})
    text = json.dumps({**header, TENSORS: described}).encode()
    text += b" " * (-(PREFIX.size + len(text)) % ALIGNMENT)
    length = sum(map(len, payload))
    if len(text) > MAX_HEADER or length > MAX_PAYLOAD:
        raise UnsendableError(
            f"One message between ComfyUI and the ranks would have {len(text)} + {length} bytes. The limit is "
            f"{MAX_HEADER} + {MAX_PAYLOAD}.",
            "Use a smaller batch, size or LoRA.",
        )
    return [PREFIX.pack(MAGIC, VERSION, len(text), length) + text, *payload]


def send_pieces(connection: socket.socket, frame: Sequence[Piece], memory: Memory | None = None) -> None:
    """Sends a frame from `encode`. memory: returns so many bytes for a large frame, for copies from this device.
    Raises ConnectionError if the other side is gone."""
    if memory is None or not is_large(frame):
        # A copy that fails may not leave half a frame in the socket.
        copies = iter(devices.to_host([piece for piece in frame if isinstance(piece, torch.Tensor)]))
        for piece in frame:
            connection.sendall(next(copies).numpy().data if isinstance(piece, torch.Tensor) else piece)
        return
    used = list(dict.fromkeys(piece.device for piece in frame if isinstance(piece, torch.Tensor)))
    view, start = memory(sum(map(len, frame)), used[0] if used else None), 0
    for piece in frame:
        stop = start + len(piece)
        if isinstance(piece, torch.Tensor):
            target = torch.frombuffer(view[start:stop], dtype=torch.uint8)
            target.copy_(piece, non_blocking=devices.is_accelerator(piece.device))
        else:
            view[start:stop] = piece
        start = stop
    for device in filter(devices.is_accelerator, used):  # once for all of its pieces
        devices.wait_for_stream(device)
    first = bytes(view[: PREFIX.size])
    connection.sendall(IN_MEMORY + first[len(MAGIC) :])


def is_large(frame: Iterable[Piece]) -> bool:
    """Whether a frame goes through memory, if both sides have it."""
    return sum(map(len, frame)) > SOCKET_BYTES


def read_prefix(prefix: Buffer) -> tuple[int, int]:
    """Returns the lengths of header and payload. Raises ProtocolError for a foreign, newer, or oversized frame."""
    if len(prefix) < PREFIX.size:
        raise ProtocolError(f"A frame of {len(prefix)} bytes is cut off.")
    magic, version, header_length, payload_length = PREFIX.unpack(prefix)
    if magic not in (MAGIC, IN_MEMORY):
        raise ProtocolError(f"Not a frame of this protocol: it starts with {magic!r}.")
    check_version(version)
    if header_length > MAX_HEADER or payload_length > MAX_PAYLOAD:
        raise ProtocolError(
            f"A frame of {header_length} + {payload_length} bytes is over the caps of {MAX_HEADER} + {MAX_PAYLOAD}."
        )
    return header_length, payload_length


def check_version(version: int) -> None:
    """Raises ProtocolError for a version other than this one."""
    if version != VERSION:
        raise ProtocolError(
            f"The other side speaks version {version} of ParallelDiT's protocol and this one {VERSION}, because the "
            "pack was updated while ComfyUI ran.",
            "Restart ComfyUI.",
        )


def decode(frame: Buffer) -> tuple[Header, Tensors]:
    """Returns header and tensors of a frame. The tensors are views of its memory. Raises ProtocolError if malformed."""
    view = memoryview(frame)
    header_length, payload_length = read_prefix(view[: PREFIX.size])
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise ProtocolError("A frame's body is elsewhere.")
    body = view[PREFIX.size :]
    if len(body) != header_length + payload_length:
        raise ProtocolError(f"A frame of {len(body)} bytes announces {header_length + payload_length}.")
    try:
        header = parse_object(body[:header_length])
        tensors = from_buffer(header.pop(TENSORS, {}), body[header_length:])
    except ValueError as error:
        raise ProtocolError(f"A malformed frame: {error}.") from error
    return header, tensors


def receive_frame(
    connection: socket.socket,
    allocate: Callable[[int], WritableBuffer] = bytearray,
    in_memory: Callable[[int], WritableBuffer] | None = None,
) -> WritableBuffer:
    """Reads one frame, blocking, into memory from `allocate`. in_memory: returns so many bytes of the memory in which a
    large frame is.

    Raises ConnectionClosed if the other side is gone, and ProtocolError for a frame that must not be read.
    """
    prefix = bytearray(PREFIX.size)
    _receive_into(connection, memoryview(prefix))
    length = sum(read_prefix(prefix))
    if prefix.startswith(IN_MEMORY):
        if in_memory is None:
            raise ProtocolError("A frame is in memory that this side does not have.")
        return in_memory(PREFIX.size + length)
    frame = allocate(PREFIX.size + length)
    frame[: PREFIX.size] = prefix
    _receive_into(connection, memoryview(frame)[PREFIX.size :])
    return frame


def _receive_into(connection: socket.socket, view: memoryview) -> None:
    while view:
        try:
            count = connection.recv_into(view)
        except ConnectionError as error:
            raise ConnectionClosed("The connection broke.") from error
        if not count:
            raise ConnectionClosed("The other side closed the connection.")
        view = view[count:]
