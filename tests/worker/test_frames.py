"""Bytes that are no whole frame: they end the rank, or hold up nothing else. What no frame can carry is not sent."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, call_request, source_of
from tests.support.group.one_rank import OneRank
from worker.errors import ConnectionClosed
from worker.wire.operations import LOAD
from worker.wire.protocol import decode, encode, receive_frame, send_frame

ENDS_WITHIN = 60


@pytest.mark.slow
@pytest.mark.parametrize("channel", ["job", "control"])
def test_a_channel_that_lost_its_framing_ends_the_rank_and_says_so(
    own_ranks: None, channel: str, tmp_path: Path
) -> None:
    with OneRank(tmp_path) as rank:
        connection = {"job": rank.job, "control": rank.control}[channel]
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises(ConnectionClosed):
            receive_frame(connection)
        assert rank.process.wait(ENDS_WITHIN)
        assert "Not a frame of this protocol: it starts with b'GET '" in rank.said()


@pytest.mark.slow
def test_a_half_sent_question_holds_up_no_job(own_ranks: None, tmp_path: Path) -> None:
    load = LOAD.header(source=source_of(DIT, tmp_path / "model").to_json(), plan=ParallelPlan().to_json())
    with OneRank(tmp_path) as rank:
        rank.control.sendall(b"".join(encode({"op": "status"}))[:-1])
        assert rank.request(load, {})[0].keys() == {"id"}
        assert "prediction.0.0" in rank.request(*call_request(DIT))[1]
        rank.control.sendall(b" ")
        assert decode(receive_frame(rank.control))[0]["pids"] == [rank.process.pid]


def test_what_no_frame_can_carry_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.wire.protocol.MAX_PAYLOAD", 1000)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        with pytest.raises(ValueError, match="Use a smaller batch"):
            send_frame(sender, {}, {"x": DIT.inputs(1, 32, 32)[0]})
        send_frame(sender, {"op": "status"})
        assert decode(receive_frame(receiver))[0] == {"op": "status"}
