"""Whether collectives of several ranks can wait for each other for ever, by what each rank launches.

A kernel begins once what its rank orders before it has ended, and ends once its partners have begun: the same
collective of the other ranks, or the other end of each message, as nothing is buffered. Calls of one communicator meet
in their order. A card runs only so many kernels side by side: the next one waits for one of them to end.

`check` raises for calls that do not meet and for a circle of waits, whatever the room. `room_needed` is how many
kernels a rank may have side by side; with as much room, none ever waits for room.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parallel_backend.axes import AXES

ON_HOST = "host"


class Deadlock(Exception):
    """Ranks wait for each other, or for what no rank does. The message names the calls."""


@dataclass(eq=False)
class Call:
    """A kernel of a rank. before: kernels of the rank that end before it begins. partners: that have to begin before it
    ends."""

    number: int
    rank: int
    kind: str
    group: str
    ranks: tuple[int, ...]
    parts: list[tuple[str, int]]
    stream: str
    time: int
    what: str
    before: list[Call] = field(default_factory=list)
    partners: list[Call] = field(default_factory=list)

    def __str__(self) -> str:
        return f"rank {self.rank}'s {self.what}"

    @property
    def is_on_host(self) -> bool:
        return self.stream.startswith(ON_HOST)


def calls_of(traces: Sequence[Sequence[dict[str, Any]]], loads: bool = False) -> list[Call]:
    """The calls of all ranks, each with what it waits for. Raises Deadlock for calls that do not meet.

    traces: by rank, a simulator's kernels as dictionaries. loads: the first operation of a name and shapes loads its
    kernel: the host waits for all that it has launched.
    """
    calls: list[Call] = []
    for rank, trace in enumerate(traces):
        of_stream: dict[str, list[Call]] = defaultdict(list)
        own, seen = list[Call](), 0
        awaited: dict[str, Call] = {}  # the last call of each stream that the host has waited for
        for each in trace:
            parts = [(kind, peer) for kind, peer in each["parts"]]
            whose = (each["kind"], each["group"], tuple(each["ranks"]), parts)
            call = Call(len(calls), rank, *whose, each["stream"], each["time"], each["what"])
            for stream, time in each["clock"].items():
                ended = [other for other in of_stream.get(stream, ()) if other.time <= time]
                call.before += ended[-1:]
            if loads:
                awaited.update((other.stream, other) for other in own[seen : each["loaded"]])
                seen = each["loaded"]
                call.before += awaited.values()
            of_stream[call.stream].append(call)
            own.append(call)
            calls.append(call)
    match_collectives(calls)
    match_messages(calls)
    return calls


def match_collectives(calls: Sequence[Call]) -> None:
    """Finds the partners of collectives: on each rank, those of a group meet in their order."""
    by_group: dict[tuple, dict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
    for call in calls:
        if not call.parts:
            by_group[call.group, call.ranks][call.rank].append(call)
    for (group, ranks), by_rank in by_group.items():
        for place in range(max(map(len, by_rank.values()))):
            there = [by_rank[rank][place] for rank in ranks if place < len(by_rank[rank])]
            if len(there) < len(ranks):
                missing = [rank for rank in ranks if place >= len(by_rank[rank])]
                raise Deadlock(f"{there[0]} waits for the ranks {missing}, which do not call group {group} again.")
            for call in there:
                if call.kind != there[0].kind:
                    raise Deadlock(f"{there[0]} meets {call} as call {place} of group {group}.")
                call.partners += [other for other in there if other is not call]


def match_messages(calls: Sequence[Call]) -> None:
    """Finds the other ends of messages: of a group, those from one rank to another meet in their order."""
    ends: dict[tuple, list[Call]] = defaultdict(list)
    for call in calls:
        for kind, peer in call.parts:
            pair = (call.rank, peer) if kind == "send" else (peer, call.rank)
            ends[call.group, pair, kind].append(call)
    for (group, pair, kind), own in ends.items():
        others = ends.get((group, pair, "recv" if kind == "send" else "send"), [])
        if len(own) > len(others):
            raise Deadlock(
                f"{own[len(others)]} waits for its other end, for which rank {pair[kind == 'send']} has no call."
            )
        for call, other in zip(own, others, strict=True):
            call.partners.append(other)


def check(calls: Sequence[Call]) -> list[tuple[Call, bool]]:
    """Returns the beginnings (False) and ends (True) of calls in an order in which they can happen. Raises Deadlock."""
    waits: dict[tuple[int, bool], list[tuple[Call, bool]]] = {}
    for call in calls:
        waits[call.number, False] = [(other, True) for other in call.before]
        waits[call.number, True] = [(call, False), *((other, False) for other in call.partners)]
    follow: dict[tuple[int, bool], list[tuple[Call, bool]]] = defaultdict(list)
    for call in calls:
        for ends in (False, True):
            for other, other_ends in waits[call.number, ends]:
                follow[other.number, other_ends].append((call, ends))
    open_waits = {event: len(found) for event, found in waits.items()}
    ready = [(call, False) for call in calls if not open_waits[call.number, False]]
    order = []
    while ready:
        call, ends = ready.pop()
        order.append((call, ends))
        for other, other_ends in follow[call.number, ends]:
            open_waits[other.number, other_ends] -= 1
            if not open_waits[other.number, other_ends]:
                ready.append((other, other_ends))
    if len(order) < len(open_waits):
        raise Deadlock(describe_circle(calls, waits, {(call.number, ends) for call, ends in order}))
    return order


def check_receives(calls: Sequence[Call]) -> None:
    """Raises Deadlock for a receive whose message depends on what its rank launches later: in between, the rank could
    not wait for its device, as an allocator does."""
    for receive in calls:
        if not any(kind == "recv" for kind, _ in receive.parts):
            continue
        begun: set[int] = set()
        left = list(receive.partners)
        while left:
            call = left.pop()
            if call.rank == receive.rank and call.number > receive.number:
                raise Deadlock(f"{receive} comes before {call}, which its message depends on.")
            for other in call.before:
                for each in (other, *other.partners):
                    if each.number not in begun:
                        begun.add(each.number)
                        left.append(each)


def describe_circle(calls: Sequence[Call], waits: dict, happened: set[tuple[int, bool]]) -> str:
    """The calls that wait for each other, from the first that does not end."""
    event = next((call, True) for call in calls if (call.number, True) not in happened)
    path: list[tuple[Call, bool]] = []
    while event not in path:
        path.append(event)
        event = next(each for each in waits[event[0].number, event[1]] if (each[0].number, each[1]) not in happened)
    named = dict.fromkeys(str(call) for call, _ in path[path.index(event) :])
    return f"These wait for each other: {', '.join(named)}."


def room_needed(calls: Sequence[Call]) -> dict[int, int]:
    """How many kernels each rank's card may have to run side by side, by rank."""
    ended: dict[tuple[int, bool], int] = {}  # the calls that have ended when this happens, as bits
    for call, ends in check(calls):
        if ends:
            begun = [ended[each.number, False] for each in (call, *call.partners)]
            ended[call.number, True] = functools.reduce(operator.or_, begun, 1 << call.number)
        else:
            before = (ended[each.number, True] for each in call.before)
            ended[call.number, False] = functools.reduce(operator.or_, before, 0)
    found: dict[int, int] = {}
    for rank in sorted({call.rank for call in calls}):
        own = [call for call in calls if call.rank == rank and not call.is_on_host]
        beside = {
            call.number: {
                other.number
                for other in own
                if other is not call
                and not ended[call.number, False] >> other.number & 1
                and not ended[other.number, False] >> call.number & 1
            }
            for call in own
        }
        found[rank] = largest_set(set(beside), beside)
    return found


def largest_set(among: set[int], beside: dict[int, set[int]]) -> int:
    """The size of the largest set of which each is beside each other."""
    most, left = 0, set(among)
    for number in sorted(among):
        left.discard(number)
        if len(left & beside[number]) >= most:
            most = max(most, 1 + largest_set(left & beside[number], beside))
    return most


def list_degrees(ranks: int) -> list[dict[str, int]]:
    """The degrees of every plan of so many ranks. Guidance has two branches."""
    most = {"cfg": 2}
    rows = itertools.product(*(range(1, most.get(axis, ranks) + 1) for axis in AXES))
    found = [dict(zip(AXES, row, strict=True)) for row in rows if math.prod(row) == ranks]
    return [{axis: degree for axis, degree in each.items() if degree > 1} for each in found]
