"""Large frames between ComfyUI and rank 0 go through memory that both map, and small ones through the socket."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch

from parallel_backend.weights.shared_memory import IS_SHAREABLE
from tests.support.group.direct_group import wait_until
from tests.support.labelled.tensors import GPU, on_gpu
from worker.host.known_state import MOST, MOST_BYTES, SentConditions
from worker.wire.job_channel import FRAMES, SLOTS, FrameMemory, HostChannel, RankChannel
from worker.wire.protocol import PREFIX, SOCKET_BYTES, ProtocolError, decode, encode, receive_frame

pytestmark = pytest.mark.skipif(not IS_SHAREABLE, reason="memfd is Linux's")
LARGE, SMALL = SOCKET_BYTES // 4 + 1, 5  # numbers in fp32


class Ends:
    """Both ends of a channel in this process, each with a mapping of its own, and rank 0's way to read requests."""

    def __init__(self) -> None:
        self.theirs, self.ours = socket.socketpair()
        host = FrameMemory.create()
        with patch.dict(os.environ, {FRAMES: host.address}):
            rank = FrameMemory.open(writes=True)
        assert rank
        self.rank, self.host, self.memory = RankChannel(self.theirs, rank), HostChannel(self.ours, host), rank
        self.count = 0

    def request(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Sends tensors from ComfyUI's end; what rank 0 gets."""
        self.host.send(encode({"op": "x"}, {str(place): tensor for place, tensor in enumerate(tensors)}))
        self.count += 1
        slot = self.memory.requests[self.count % SLOTS]
        header, found = decode(receive_frame(self.theirs, in_memory=slot.view))
        assert header == {"op": "x"}
        return [found[str(place)] for place in range(len(tensors))]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    with ends.theirs, ends.ours:
        yield ends


def waiting(connection: socket.socket) -> int:
    """The bytes that are to be read."""
    return len(connection.recv(1 << 22, socket.MSG_PEEK))


@pytest.mark.parametrize("size", (SMALL, LARGE, 5 * LARGE))
def test_what_is_sent_arrives_whole_and_no_large_payload_goes_through_the_socket(ends: Ends, size: int) -> None:
    for _ in range(2 * SLOTS):
        sent = torch.randn(size)
        ends.host.send(encode({"id": 1}, {"latents": sent}))
        assert waiting(ends.theirs) <= SOCKET_BYTES
        assert (waiting(ends.theirs) == PREFIX.size) == (size >= LARGE)
        ends.count += 1
        in_memory = ends.memory.requests[ends.count % SLOTS].view
        assert torch.equal(decode(receive_frame(ends.theirs, in_memory=in_memory))[1]["latents"], sent)
        ends.rank.send({"id": 1}, {"prediction.0.0": sent + 1})
        assert waiting(ends.ours) <= SOCKET_BYTES
        header, found = ends.host.receive(sent.device)
        assert header == {"id": 1} and torch.equal(found["prediction.0.0"], sent + 1)


def test_a_request_stays_until_the_second_one_after_it_and_a_reply_for_ever(ends: Ends) -> None:
    sent = [torch.full((size,), float(size)) for size in (LARGE, SMALL, 3 * LARGE, LARGE)]
    got = []
    for one, other in itertools.pairwise(sent):
        (first,), (second,) = ends.request(one), ends.request(other)
        assert torch.equal(first, one) and torch.equal(second, other)
        ends.rank.send({}, {"result": one})
        got.append(ends.host.receive()[1]["result"])
    assert all(torch.equal(found, one) for found, one in zip(got, sent, strict=False))


def test_a_rank_waits_until_comfyui_has_read_what_is_in_its_way(ends: Ends) -> None:
    tensors = [torch.full((LARGE,), float(place)) for place in range(SLOTS + 1)]
    sender = threading.Thread(target=lambda: [ends.rank.send({}, {"denoised": each}) for each in tensors])
    sender.start()
    assert wait_until(lambda: waiting(ends.ours) == SLOTS * PREFIX.size, 60)
    sender.join(0.3)  # what follows has nowhere to go
    assert sender.is_alive() and waiting(ends.ours) == SLOTS * PREFIX.size
    for each in tensors:
        assert torch.equal(ends.host.receive()[1]["denoised"], each)
    sender.join(10)
    assert not sender.is_alive()


@pytest.mark.parametrize("address", ("", f"{1 << 22},3,3,3,3,3", f"1{',99999' * 5}"))
def test_memory_that_is_not_there_is_not_opened(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FRAMES, raising=False)
    if address:
        monkeypatch.setenv(FRAMES, address)
    assert FrameMemory.open(writes=True) is None


def test_a_frame_that_lies_about_its_length_is_refused(ends: Ends) -> None:
    ends.host.send(encode({}, {"x": torch.zeros(LARGE)}))
    prefix = bytearray(ends.theirs.recv(PREFIX.size))
    for length in (16 * LARGE, 1 << 33):
        ends.ours.sendall(PREFIX.pack(*PREFIX.unpack(prefix)[:3], length))
        with pytest.raises(ProtocolError):
            decode(receive_frame(ends.theirs, in_memory=ends.memory.requests[1].view))
    ends.ours.sendall(prefix)
    with pytest.raises(ProtocolError, match="does not have"):
        receive_frame(ends.theirs)


def test_the_host_waits_once_to_compare_what_the_ranks_hold() -> None:
    values = {"a": torch.randn(SMALL), "b": torch.randn(SMALL), "c": torch.randn(2, SMALL), "d": torch.empty(0)}
    with torch.no_grad(), on_gpu(counts_memory=False) as watch:
        sent, given = SentConditions(), {name: value.to(GPU, non_blocking=True) for name, value in values.items()}
        keys, new, _ = sent.diff(given)
        assert len(new) == 4
        watch.begin()
        again, new, dropped = sent.diff({name: value.clone() for name, value in given.items()})
        watch.end()
        assert again == keys and not (new or dropped)
        assert sum(watch.outside.values()) == 1, watch.outside
        changed = {"a": given["a"] + 1, "b": given["b"].double(), "c": given["c"].flatten()}
        assert len(sent.diff(changed)[1]) == 3
    assert not sent.diff({"here": torch.ones(SMALL)})[1].keys() & keys.values(), "on another device"


@pytest.mark.parametrize(("size", "kept"), [(1, MOST), (MOST_BYTES // 4, 4)])
def test_conditions_of_former_prompts_are_kept_up_to_a_number_and_a_size(size: int, kept: int) -> None:
    sent, held = SentConditions(), set[str]()
    for number in range(kept + 10):
        own = torch.empty(size, dtype=torch.uint8, device="meta")  # no two are equal
        with patch("worker.host.known_state.find_equal", lambda pairs: [False] * len(pairs)):
            keys, new, dropped = sent.diff({"text": own, "video": own})
        held = (held | new.keys()) - {*dropped}
        assert held == sent.sent.keys() and held >= {*keys.values()}
        assert len(held) == min(2 * (number + 1), kept + 2)


def test_without_memory_all_goes_through_the_socket() -> None:
    theirs, ours = socket.socketpair()
    sent = torch.randn(LARGE)
    with theirs, ours, contextlib.ExitStack() as stack:
        sender = threading.Thread(target=RankChannel(theirs, None).send, args=({}, {"latents": sent}))
        sender.start()
        stack.callback(sender.join)
        assert torch.equal(HostChannel(ours, None).receive()[1]["latents"], sent)
