"""The checker in `tests/support/streams/deadlock.py` finds deadlocks that are there on purpose, and names the calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.streams.deadlock import Deadlock, calls_of, check, check_receives, room_needed
from tests.support.streams.simulator import MAIN, Simulator

Trace = list[dict[str, Any]]
WAITS = True


def trace(*calls: tuple[str, str, Any, bool]) -> Trace:
    """What a rank of two launches. calls: each with its name, its group, the messages in it, and whether the rank waits
    for it before it goes on."""
    simulator = Simulator()
    for name, group, parts, is_awaited in calls:
        stream = f"group {group}"
        simulator.launch(stream, simulator.record(MAIN))
        simulator.start(name, group, [0, 1], stream, name, parts)
        if is_awaited:
            simulator.wait(MAIN, simulator.record(stream))
    return [dataclasses.asdict(kernel) for kernel in simulator.kernels]


WEIGHTS = ("all_gather of weights", "weights", (), False)
TOKENS = ("all_to_all of tokens", "ulysses", (), False)
AWAITED = [(*each[:3], WAITS) for each in (WEIGHTS, TOKENS)]


def test_calls_in_one_order_end_and_swapped_ones_that_are_waited_for_do_not() -> None:
    check(calls_of([trace(*AWAITED), trace(*AWAITED)]))
    calls = calls_of([trace(*AWAITED), trace(*reversed(AWAITED))])
    with pytest.raises(Deadlock, match="rank 0's all_gather of weights") as told:
        check(calls)
    assert "rank 1's all_to_all of tokens" in str(told.value)


def test_swapped_calls_of_one_communicator_are_named() -> None:
    ones = [(name, "one", parts, waits) for name, _, parts, waits in (WEIGHTS, TOKENS)]
    with pytest.raises(Deadlock, match="rank 0's all_gather of weights meets rank 1's all_to_all of tokens"):
        calls_of([trace(*ones), trace(*reversed(ones))])


def test_a_call_that_another_rank_lacks_is_named() -> None:
    with pytest.raises(Deadlock, match=r"rank 0's all_to_all of tokens waits for the ranks \[1\]"):
        calls_of([trace(WEIGHTS, TOKENS, TOKENS), trace(WEIGHTS, TOKENS)])
    with pytest.raises(Deadlock, match="rank 0's send waits for its other end, for which rank 1 has no call"):
        calls_of([trace(("send", "link", [("send", 1)], False)), trace()])


def test_a_send_waits_for_its_receive() -> None:
    def both(first: str, peer: int, link: str, back: str) -> Trace:
        """A message there and one back, each waited for."""
        second = {"send": "recv", "recv": "send"}[first]
        return trace((first, link, [(first, peer)], WAITS), (second, back, [(second, peer)], WAITS))

    check(calls_of([both("send", 1, "there", "back"), both("recv", 0, "there", "back")]))
    with pytest.raises(Deadlock, match="rank 0's send"):
        check(calls_of([both("send", 1, "there", "back"), both("send", 0, "back", "there")]))


def test_a_receive_whose_message_depends_on_a_later_call_is_named() -> None:
    """Each rank receives ahead, and sends what the other one waits for."""
    there = [("send", "there", [("send", 1)], False), ("recv", "back", [("recv", 1)], False)]
    back = [("recv", "there", [("recv", 0)], WAITS), ("send", "back", [("send", 0)], False)]
    check_receives(calls_of([trace(*there), trace(*back)]))
    calls = calls_of([trace(*reversed(there)), trace(*back)])
    check(calls)
    with pytest.raises(Deadlock, match="rank 0's recv comes before rank 0's send"):
        check_receives(calls)


def test_messages_of_one_kernel_leave_and_arrive_together() -> None:
    check(calls_of([trace(("messages", "ring", [("send", peer), ("recv", peer)], WAITS)) for peer in (1, 0)]))


@pytest.mark.parametrize(
    ("traces", "room"),
    [
        ([trace(WEIGHTS, TOKENS)] * 2, {0: 2, 1: 2}),
        ([trace(*AWAITED, *AWAITED)] * 2, {0: 1, 1: 1}),
        (
            [
                trace(WEIGHTS, ("send", "link", [("send", 1)], WAITS)),
                trace(("recv", "link", [("recv", 0)], WAITS), WEIGHTS),
            ],
            {0: 2, 1: 1},
        ),
    ],
    ids=["side by side", "one after the other", "side by side on one rank"],
)
def test_kernels_need_room_where_they_may_run_side_by_side(traces: list[Trace], room: dict[int, int]) -> None:
    """With less, each rank may begin with another one. In the last case, rank 0's message may wait for its own weights,
    which wait for a rank that waits for the message."""
    assert room_needed(calls_of(traces)) == room
