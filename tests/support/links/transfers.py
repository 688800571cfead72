"""`torchrun -m tests.support.links.transfers NAMESPACE RATES FILE`: how fast collectives go over a link at each rate.

RATES is JSON, bytes a second. FILE gets, by rate and collective, the bytes that a rank sent by the seconds, a list.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from parallel_backend.groups.collectives import ALL_GATHER
from tests.support.links.link import limit
from tests.support.ranks.leaving import leave

SECONDS, REPEATS = 0.1, 5
PATIENCE = 60.0
# Of the rate. Headers are 1 to 5 %. More than the rate: what the bucket lets through at once after a silence.
LEAST, MOST = 0.7, 1.1


def collectives(size: int) -> dict[str, Callable[[], None]]:
    """By name; in each, a rank sends `size` bytes in all and receives as many."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.ones(size // (ranks - 1), dtype=torch.uint8)
    parts = torch.ones(ranks * (size // (ranks - 1)), dtype=torch.uint8)
    all_parts = torch.empty_like(parts)
    whole = torch.ones(size, dtype=torch.uint8)

    def exchange() -> None:
        sending = dist.isend(whole, (rank + 1) % ranks)
        dist.recv(torch.empty_like(whole), (rank - 1) % ranks)
        sending.wait()

    return {
        "all-gather": lambda: getattr(dist, ALL_GATHER)(all_parts, mine),
        "all-to-all": lambda: dist.all_to_all_single(all_parts, parts),
        "ring": exchange,
    }


def speeds(run: Callable[[], None], size: int, rate: float) -> list[float]:
    """Bytes by the second, of the last repeats.

    A machine that does other things meanwhile makes ranks late, so there are more repeats until the median is near the
    rate. On a link of another rate it never is, and they end after PATIENCE seconds.
    """
    found, until = [], time.monotonic() + PATIENCE
    is_over = torch.zeros(1, dtype=torch.uint8)
    while not is_over:
        dist.barrier()
        started = time.perf_counter()
        run()
        dist.barrier()
        found.append(size / (time.perf_counter() - started))
        is_near = LEAST * rate < statistics.median(found[-REPEATS:]) < MOST * rate
        is_over[0] = len(found) >= REPEATS and (is_near or time.monotonic() > until)
        dist.broadcast(is_over, 0)
    return found[-REPEATS:]


def main(namespace: str, rates: str, file: str) -> None:
    dist.init_process_group("gloo")
    found = {}
    for rate in json.loads(rates):
        if dist.get_rank() == 0:
            limit(namespace, dist.get_world_size(), rate)
        size = round(rate * SECONDS)
        found[str(rate)] = {name: speeds(run, size, rate) for name, run in collectives(size).items()}
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
