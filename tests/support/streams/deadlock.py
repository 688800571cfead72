"""Whether collectives of several ranks can wait for each other for ever, by what each rank launches.

A kernel begins once what its rank orders before it has ended, and ends once its partners have begun: the same
collective of the other ranks, or the other end of each message, as nothing is buffered. Calls of one communicator meet
in their order. A card runs only so many kernels side by side: the next one waits for one of them to end.

`check` raises for calls that do not meet and for a circle of waits, whatever the room. `room_needed` is how many
kernels a rank may have side by side; with as much room, none ever waits for room. `search` tries all orders in which
kernels may begin with less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_STATES = 200_000
ON_HOST = "host"


class Deadlock(Exception):
    """Ranks wait for each other, or for what no rank does. The message names the calls."""


@dataclass
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


def describe_circle(calls: Sequence[Call], waits: dict, happened: set[tuple[int, bool]]) -> str:
    call, ends = next((call, True) for call in calls if (call.number, True) not in happened)
    path: list[tuple[int, bool]] = []
    said: list[str] = []
    while (call.number, ends) not in path:
        path.append((call.number, ends))
        other, other_ends = next(each for each in waits[call.number, ends] if (each[0].number, each[1]) not in happened)
        if other is not call:
            said.append(f"{call} {'waits for' if ends else 'comes after'} {other}")
        else:
            said.append("")
        call, ends = other, other_ends
    return "; ".join(filter(None, said[path.index((call.number, ends)) :])) + "."


def room_needed(calls: Sequence[Call]) -> dict[int, int]:
    """How many kernels each rank's card may have to run side by side, by rank."""
    ended: dict[tuple[int, bool], int] = {}  # the calls that have ended when this happens, as bits
    for call, ends in check(calls):
        if ends:
            begun = [ended[each.number, False] for each in (call, *call.partners)]
            ended[call.number, True] = union(begun) | 1 << call.number
        else:
            ended[call.number, False] = union(ended[each.number, True] for each in call.before)
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


def union(bits: Any) -> int:
    found = 0
    for each in bits:
        found |= each
    return found


def largest_set(among: set[int], beside: dict[int, set[int]]) -> int:
    """The size of the largest set of which each is beside each other."""
    most, left = 0, set(among)
    for number in sorted(among):
        left.discard(number)
        if len(left & beside[number]) >= most:
            most = max(most, 1 + largest_set(left & beside[number], beside))
    return most


def search(calls: Sequence[Call], room: int) -> None:
    """Tries every order in which kernels may begin on cards that run `room` of them side by side. Raises Deadlock for
    one that does not end, and OverflowError for too many orders to try."""
    needed = room_needed(calls)
    every = (1 << len(calls)) - 1
    before = [union(1 << each.number for each in call.before) for call in calls]
    partners = [union(1 << each.number for each in (call, *call.partners)) for call in calls]
    is_bound = [needed[call.rank] > room and not call.is_on_host for call in calls]
    on_rank = defaultdict(int)
    for call in calls:
        on_rank[call.rank] |= 0 if call.is_on_host else 1 << call.number

    def settle(begun: int, ended: int) -> tuple[int, int]:
        """What must happen happens: what has met ends, and what never waits for room begins."""
        changed = True
        while changed:
            changed = False
            for call in calls:
                bit = 1 << call.number
                if not begun & bit and not is_bound[call.number] and before[call.number] & ~ended == 0:
                    begun, changed = begun | bit, True
                if begun & bit and not ended & bit and partners[call.number] & ~begun == 0:
                    ended, changed = ended | bit, True
        return begun, ended

    seen: set[tuple[int, int]] = set()
    open_states = [settle(0, 0)]
    while open_states:
        begun, ended = state = open_states.pop()
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > MOST_STATES:
            raise OverflowError(f"There are more than {MOST_STATES} states.")
        waiting = [call for call in calls if not begun >> call.number & 1 and before[call.number] & ~ended == 0]
        able = [call for call in waiting if (begun & ~ended & on_rank[call.rank]).bit_count() < room]
        if not able and ended != every:
            running = [str(call) for call in calls if (begun & ~ended) >> call.number & 1]
            raise Deadlock(f"{', '.join(running)} hold the room that is wanted by {', '.join(map(str, waiting))}.")
        open_states += [settle(begun | 1 << call.number, ended) for call in able]
