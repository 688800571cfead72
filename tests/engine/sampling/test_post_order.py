"""PipeFusion posts no receive that waits for what its own rank has yet to launch.

On a GPU that is a deadlock: whatever waits for the device in between, a kernel's loading or an allocator, waits for it
and with it for itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ranks.pool import RankPool

STAGES = 3
PLANS = [
    {"pipefusion": STAGES, "patches": 1},
    {"pipefusion": STAGES, "patches": 2, "sync_steps": 2},
    {"pipefusion": STAGES, "patches": 3, "sync_steps": 1},
    {"pipefusion": STAGES, "patches": 4, "sync_steps": 1},
    {"pipefusion": STAGES, "patches": 16, "sync_steps": 1},  # more than are under way between two stages
]
Event = tuple[int, int]  # rank, and place in its log
Logs = list[list[list]]


@pytest.fixture(scope="module")
def logs(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> list[Logs]:
    """By plan and rank."""
    out = tmp_path_factory.mktemp("order") / "log"
    ranks.run(STAGES, "cuda.post_order_rank", json.dumps(PLANS), str(out))
    by_rank = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(STAGES)]
    return [list(of_plan) for of_plan in zip(*by_rank, strict=True)]


def before(event: Event, logs: Logs, sends: dict) -> Iterator[Event]:
    """What an event directly waits for: what its rank did before, and of a wait, the send."""
    rank, place = event
    if place:
        yield rank, place - 1
    what, other, count = logs[rank][place]
    if what == "wait":
        yield sends[other, rank, count]


@pytest.mark.parametrize("case", range(len(PLANS)), ids=map(str, PLANS))
def test_no_receive_is_posted_that_waits_for_what_its_rank_does_later(case: int, logs: list[Logs]) -> None:
    of_plan = logs[case]
    sends = {
        (rank, other, count): (rank, place)
        for rank, log in enumerate(of_plan)
        for place, (what, other, count) in enumerate(log)
        if what == "send"
    }
    ahead = 0
    for rank, log in enumerate(of_plan):
        for place, (what, other, count) in enumerate(log):
            if what != "post":
                continue
            seen, open_events = set(), [sends[other, rank, count]]
            while open_events:
                event = open_events.pop()
                if event not in seen:
                    seen.add(event)
                    open_events += before(event, of_plan, sends)
            latest = max((at for own, at in seen if own == rank), default=-1)
            assert latest < place, f"rank {rank} posts receive {count} from {other} before its own {log[latest]}"
            ahead += log[place + 1][0] != "wait"
    assert ahead or PLANS[case]["patches"] == 1, "receives are posted ahead of their use"
