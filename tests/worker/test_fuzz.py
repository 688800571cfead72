"""Whatever comes over a channel: it is refused in words, or ends the group; it hangs nothing and takes no memory."""

from __future__ import annotations

import random
import socket
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, call_request, sample_request, source_of
from tests.support.group.mutations import framed, mutate, mutate_json, real_frames
from tests.support.group.one_rank import OneRank
from worker.comfyui.patches import MERGE
from worker.comfyui.source import HostSource, VaeSource
from worker.errors import ConnectionClosed
from worker.wire.operations import LOAD, PATCH
from worker.wire.protocol import (
    MAX_HEADER,
    MAX_PAYLOAD,
    PREFIX,
    Header,
    ProtocolError,
    decode,
    encode,
    receive_frame,
    send_pieces,
)
from worker.wire.tensors import Buffer, Tensors
from worker.wire.tree import pack

MUTATED_FRAMES = 5_000
# Of each kind: those that may end in a load, which takes longer than the others, are fewer.
NO_VAE = VaeSource("/none", ("--cpu",), "/none", "AutoencoderKL", "float32")
REQUESTS = {"call": 120, "sample": 120, "vae": 60, "patch": 20, "load": 30}
QUESTIONS = 400
SECONDS = 5  # for one frame; a hang, if it takes longer
SMALL = 1 << 20
GROWTH = 64 << 20  # bytes


class TooLarge(Exception):
    """The frame announced more than this test gives; within the caps, real ranks would wait for it."""


def receive(frame: bytes) -> tuple[Header, Tensors]:
    """What a side of the channel reads when the other sends these bytes and goes."""

    def allocate(length: int) -> Buffer:
        announced = sum(PREFIX.unpack(frame[: PREFIX.size])[2:])
        assert length == PREFIX.size + announced <= PREFIX.size + MAX_HEADER + MAX_PAYLOAD
        if length > SMALL:
            raise TooLarge
        return bytearray(length)

    sender, receiver = socket.socketpair()
    with sender, receiver:
        receiver.settimeout(SECONDS)
        sender.sendall(frame)
        sender.close()
        return decode(receive_frame(receiver, allocate=allocate))


def outcome(frame: bytes) -> str:
    try:
        header, tensors = receive(frame)
    except (ProtocolError, ConnectionClosed, TooLarge) as error:
        return type(error).__name__
    assert isinstance(header, dict)
    assert sum(tensor.nbytes for tensor in tensors.values()) <= len(frame)
    return "taken"


def test_thousands_of_mutated_frames() -> None:
    """Python allocates no more at once than a frame of this file can need, decoded."""
    chance = random.Random(6)
    frames = real_frames()
    tracemalloc.start()
    try:
        assert {outcome(frame) for frame in frames} == {"taken"}
        outcomes = Counter(outcome(mutate(chance.choice(frames), chance)) for _ in range(MUTATED_FRAMES))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(dict(outcomes))
    assert min(outcomes[kind] for kind in ("ProtocolError", "ConnectionClosed", "taken")) > MUTATED_FRAMES // 50
    assert peak < 64 << 20


@pytest.mark.parametrize(("header", "payload"), [(MAX_HEADER + 1, 0), (0, MAX_PAYLOAD + 1), (2**32 - 1, 2**64 - 1)])
def test_nothing_is_allocated_for_a_frame_over_the_caps(header: int, payload: int) -> None:
    prefix = PREFIX.pack(*PREFIX.unpack(real_frames()[0][: PREFIX.size])[:2], header, payload)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.sendall(prefix)
        with pytest.raises(ProtocolError, match="over the caps"):
            receive_frame(receiver, allocate=lambda length: pytest.fail(f"asked for {length} bytes"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> HostSource:
    return source_of(DIT, tmp_path_factory.mktemp("model"))


def requests(model: HostSource) -> dict[str, tuple[Header, Tensors]]:
    """One of each kind that works, but for the VAE's, which has no file."""
    tensors: Tensors = {}
    name = "diffusion_model.transformer_blocks.0.attn1.to_q.weight"
    patch = [0.5, "", pack((torch.ones(64, 64),), "patch", tensors), 1.0, None, False]
    merged = [0.5, MERGE, [0, name, [patch]], 0.5, None, False]
    return {
        "load": (LOAD.header(source=model.to_json(), plan=ParallelPlan().to_json()), {}),
        "call": call_request(DIT),
        "sample": sample_request(DIT, steps=2),
        "patch": (PATCH.header(key="a", patches={name: [patch, merged]}, files=[model.to_json()]), tensors),
        "vae": ({"op": "vae", "direction": "decode", "vae": NO_VAE.to_json()}, {"input": DIT.inputs(1, 8, 8)[0]}),
    }


def test_wrong_requests_are_refused_and_the_rank_lives(own_ranks: None, model: HostSource, tmp_path: Path) -> None:
    """On both channels of a real rank: each is answered, and the last good one as the first. Its memory stays."""
    chance = random.Random(6)
    valid = requests(model)
    with OneRank(tmp_path) as rank:
        assert rank.request(*valid["load"])[0]["has_model"]
        first = rank.request(*valid["call"])[1]["prediction.0.0"]
        memory = psutil.Process(rank.process.pid).memory_info().rss
        answers: Counter[tuple[str, str]] = Counter()
        for kind in (kind for kind, count in REQUESTS.items() for _ in range(count)):
            header, tensors = valid[kind]
            wrong = mutate_json(header, chance)
            wrong = wrong if isinstance(wrong, dict) else {}
            if tensors and chance.random() < 0.3:
                missing = chance.choice(list(tensors))
                tensors = {name: tensor for name, tensor in tensors.items() if name != missing}
            reply, _ = rank.request(wrong, tensors)
            answers[kind, "error" if "error" in reply else "done"] += 1
            if kind != "load" and "model" not in rank.ask({"op": "status"}):
                rank.request(*valid["load"])
        for _ in range(QUESTIONS):
            question = mutate_json(chance.choice([{"op": "cancel", "job": 1 << 40}, {"op": "status"}]), chance)
            reply = rank.ask(question if isinstance(question, dict) else {})
            answers["control", "error" if "error" in reply else "done"] += 1
        print(dict(answers))
        assert all(answers[kind, "error"] for kind in (*valid, "control"))
        assert rank.ask({"op": "status"})["pids"] == [rank.process.pid]
        assert rank.request(*valid["load"])[0]["has_model"]
        assert rank.request(*valid["call"])[1]["prediction.0.0"].equal(first)
        assert psutil.Process(rank.process.pid).memory_info().rss - memory < GROWTH


def test_what_no_frame_can_carry_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.wire.protocol.MAX_PAYLOAD", 1000)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        with pytest.raises(ValueError, match="Use a smaller batch"):
            send_pieces(sender, encode({}, {"x": DIT.inputs(1, 32, 32)[0]}))
        send_pieces(sender, encode({"op": "status"}))
        assert decode(receive_frame(receiver))[0] == {"op": "status"}


def test_a_long_shape_takes_no_time() -> None:
    """Its product would: of a million sizes, a number of gigabits."""
    size = b",".join([b"8589934592"] * 400_000)
    text = b'{"tensors": {"x": ["F32", [' + size + b"]]}}"
    began = time.process_time()
    with pytest.raises(ProtocolError):
        decode(framed(text, bytes(8)))
    assert time.process_time() - began < SECONDS
