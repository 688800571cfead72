"""What ranks on a CPU and the link between them can, measured by all of them at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from parallel_backend.costs.machine import Link, Speed
from parallel_backend.groups.collectives import ALL_GATHER

REPEATS = 5
SMALL, LARGE_SECONDS = 1024, 0.05
OPERATIONS = 500


def seconds_of(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Of the slowest rank, by the median."""
    found = []
    for _ in range(repeats):
        dist.barrier()
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


@torch.inference_mode()
def measured_speeds() -> tuple[Speed, ...]:
    """Of every rank, in the sizes that the cases have."""
    rows, columns, heads, head_dim = 768, 512, 8, 64
    x, weight, bias = torch.randn(rows, columns), torch.randn(4 * columns, columns), torch.randn(4 * columns)
    q = torch.randn(1, heads, rows, head_dim)
    wide, tiny = torch.randn(rows, 4 * columns), torch.randn(8)

    def operations() -> None:
        for _ in range(OPERATIONS):
            tiny.add(1)

    linear = 2 * x.numel() * len(weight) / seconds_of(lambda: torch.nn.functional.linear(x, weight, bias), 11)
    attention = 4 * rows * q.numel() / seconds_of(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q), 11)
    memory = 2 * wide.nbytes / seconds_of(lambda: wide.mul(2.0), 11)
    operation = seconds_of(operations) / OPERATIONS
    own = torch.tensor([linear, attention, memory, operation], dtype=torch.float64)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    return tuple(Speed(f"rank {rank}", *each.tolist()) for rank, each in enumerate(found))


def measured_links(rate: float) -> dict[str, Link]:
    """By the name that a machine has for it. rate: bytes a second that are about to be expected."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def collectives(size: int) -> dict[str, Callable[[], object]]:
        """In each, a rank sends `size` bytes and receives as many."""
        mine = torch.ones(size // (ranks - 1), dtype=torch.uint8)
        parts, whole = mine.repeat(ranks), torch.ones(size, dtype=torch.uint8)
        received, taken = torch.empty_like(parts), torch.empty_like(whole)

        def exchange() -> None:
            sending = dist.isend(whole, (rank + 1) % ranks)
            dist.recv(taken, (rank - 1) % ranks)
            sending.wait()

        return {
            "all_to_all": lambda: dist.all_to_all_single(received, parts),
            "all_gather": lambda: getattr(dist, ALL_GATHER)(received, mine),
            "send": exchange,
        }

    large = max(64 * SMALL, round(rate * LARGE_SECONDS))
    links = {}
    for name in collectives(SMALL):
        latency, seconds = (seconds_of(collectives(size)[name]) for size in (SMALL, large))
        own = torch.tensor([latency, seconds], dtype=torch.float64)
        dist.all_reduce(own, dist.ReduceOp.MAX)
        latency, seconds = own.tolist()
        links[name] = Link(large / max(seconds - latency, 1e-6), latency)
    return links
