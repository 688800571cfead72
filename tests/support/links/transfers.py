"""`torchrun -m tests.support.links.transfers NAMESPACE RATES FILE`: how fast an all-to-all goes over a link.

RATES is JSON, bytes a second. FILE gets, by rate, the bytes that a rank sent by the seconds, a list.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.links.link import limit
from tests.support.ranks.leaving import leave

SECONDS, REPEATS = 0.1, 5
PATIENCE = 60.0
# Of the rate. Headers are 1 to 5 %. More than the rate: what the bucket lets through at once after a silence.
LEAST, MOST = 0.7, 1.1


def speeds(rate: float) -> list[float]:
    """Bytes that a rank sends by the second, of the last repeats.

    A machine that does other things meanwhile makes ranks late, so there are more repeats until the median is near the
    rate. On a link of another rate it never is, and they end after PATIENCE seconds.
    """
    ranks, found, until = dist.get_world_size(), [], time.monotonic() + PATIENCE
    size = round(rate * SECONDS) // (ranks - 1)
    parts = torch.ones(ranks * size, dtype=torch.uint8)
    arrived, is_over = torch.empty_like(parts), torch.zeros(1, dtype=torch.uint8)
    while not is_over:
        dist.barrier()
        started = time.perf_counter()
        dist.all_to_all_single(arrived, parts)
        dist.barrier()
        found.append(size * (ranks - 1) / (time.perf_counter() - started))
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
        found[str(rate)] = speeds(rate)
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
