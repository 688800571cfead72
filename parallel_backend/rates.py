"""Measures how fast ranks compute and exchange. All ranks measure at the same time, as in a step."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .device import copier, is_accelerator, name_of, pin_now, synchronise
from .groups.collectives import ALL_GATHER, exchange_messages, gather_json
from .groups.mesh import Axis

MEASURED = 32 << 20  # bytes sent to measure a link
TIMES = 3
HEAD_DIM = 64
WIDTH = 512  # of a token, for operations that are no products
TINY, TINY_TIMES = 8, 50  # how wide a tiny operation's token is, and how often it runs
LEAST_SECONDS = 1e-9  # that a clock tells apart


class Amounts(NamedTuple):
    """The sizes of the measurements.

    side: tokens of a product; their width is half of it, and the result's width twice it.
    tokens, heads: of attention.
    elements: numbers that other operations read. repeats: how often they run.
    sent: bytes that a rank sends over a link. few: so few bytes that their time is the link's latency.
    """

    side: int
    tokens: int
    heads: int
    elements: int
    repeats: int
    sent: int
    few: int = 4096


# On shared cores, a measurement must be long enough that no rank runs alone for all of it. Large results go
# into tensors that exist: the system may give memory for new ones page by page, which takes longer than the operation.
OF_A_CARD = Amounts(4096, 4096, 24, elements=1 << 26, repeats=1, sent=MEASURED)
OF_CORES = Amounts(1024, 1024, 8, elements=1 << 21, repeats=4, sent=4 << 20)


def measure_ranks(
    axis: Axis, device: torch.device, dtype: torch.dtype, control: dist.ProcessGroup | None
) -> dict[str, Any]:
    """Measures the speeds of all ranks, and the links as the slowest rank sees them: the input of `Machine.of`.

    axis: over all ranks, at least two. control: a group of all ranks for CPU tensors. All ranks call it together.
    """
    amounts = OF_A_CARD if is_accelerator(device) else OF_CORES
    gather_json(None, control)  # all begin together
    speeds = gather_json({"name": name_of(device), **speeds_of(device, dtype, amounts)}, control)
    fastest = speeds[dist.get_rank(control)]["memory"]
    own = {**links_of(axis, device, amounts, fastest), "host": (float(host_rate(device)), 0.0)}
    found = gather_json(own, control)
    links = {kind: [min(each[kind][0] for each in found), max(each[kind][1] for each in found)] for kind in own}
    return {"speeds": speeds, **links, "host": links["host"][0], "hides": float(is_accelerator(device))}


@torch.inference_mode()
def speeds_of(device: torch.device, dtype: torch.dtype, amounts: Amounts) -> dict[str, float]:
    """Measures a device, see `Speed`."""
    side = amounts.side
    given, weight = (torch.ones(rows, side // 2, dtype=dtype, device=device) for rows in (side, 2 * side))
    bias = weight[:, 0].contiguous()
    tokens, others = (torch.ones(amounts.elements // WIDTH, WIDTH, dtype=dtype, device=device) for _ in range(2))
    joined = torch.cat((tokens, others), 1)

    def move() -> None:  # reads and writes 9 times the bytes of the tokens
        for _ in range(amounts.repeats):
            torch.mul(tokens, tokens[0], out=others)
            torch.add(tokens, tokens, out=others)
            torch.cat((tokens, others), 1, out=joined)

    query, key, value = (
        torch.ones(1, amounts.heads, amounts.tokens, HEAD_DIM, dtype=dtype, device=device) for _ in "qkv"
    )
    token = tokens[:1, :TINY]
    operation = median(time_runs(lambda: [token + token for _ in range(TINY_TIMES)], device)) / TINY_TIMES
    attention = median(time_runs(lambda: F.scaled_dot_product_attention(query, key, value), device))
    return {
        "linear": 2 * side**3 / median(time_runs(lambda: F.linear(given, weight, bias), device)),
        "attention": 4 * amounts.tokens**2 * amounts.heads * HEAD_DIM / attention,
        "memory": 9 * amounts.repeats * tokens.nbytes / median(time_runs(move, device)),
        "operation": max(LEAST_SECONDS, operation),
    }


def links_of(axis: Axis, device: torch.device, amounts: Amounts, fastest: float) -> dict[str, tuple[float, float]]:
    """Measures each kind of exchange: the bytes a second that this rank sends, and the seconds of latency.

    fastest: the bytes a second of the device's memory. No link is faster. A busy machine can delay the few bytes as
    long as the many, which would make the link look unlimited.
    """
    found = {}
    for kind in ("all_to_all", "all_gather", "send"):
        runs = (time_runs(exchange(kind, size, axis, device), device) for size in (amounts.few, amounts.sent))
        waits, seconds = map(min, runs)
        least = (amounts.sent - amounts.few) / fastest
        found[kind] = ((amounts.sent - amounts.few) / max(seconds - waits, least), max(LEAST_SECONDS, waits))
    return found


def exchange(kind: str, size: int, axis: Axis, device: torch.device) -> Callable[[], Any]:
    """Returns a function that sends this many bytes to the other ranks of an axis."""
    others = axis.degree - 1
    share = torch.zeros(size // others if kind == "all_gather" else size, dtype=torch.uint8, device=device)
    if kind == "all_gather":
        whole = share.new_empty(len(share) * axis.degree)
        return lambda: getattr(dist, ALL_GATHER)(whole, share, group=axis.group)
    if kind == "all_to_all":
        given = share.new_zeros(size // others * axis.degree)
        arrived = torch.empty_like(given)
        return lambda: dist.all_to_all_single(arrived, given, group=axis.group)
    following, preceding = ((axis.index + step) % axis.degree for step in (1, -1))
    sent, received = [(share, following)], [(torch.empty_like(share), preceding)]
    return lambda: exchange_messages("measured", axis, sent, received)()


def peer_rate(axis: Axis, device: torch.device) -> int:
    """Measures the bytes a second that this rank receives from the others of an axis."""
    return int(MEASURED / min(time_runs(exchange("all_gather", MEASURED, axis, device), device)))


def host_rate(device: torch.device) -> int:
    """Measures the bytes a second that this rank copies from pinned memory."""
    memory = torch.zeros(MEASURED, dtype=torch.uint8)
    pin_now(memory, device)
    target, copy = torch.empty_like(memory, device=device), copier(device)
    return int(MEASURED / min(time_runs(lambda: copy(target, memory)(), device)))


def time_runs(action: Callable[[], Any], device: torch.device) -> list[float]:
    """Returns the seconds of a few runs. The first run is not counted."""

    def read_clock() -> float:
        synchronise(device)
        return time.perf_counter()

    return timeit.repeat(action, timer=read_clock, repeat=1 + TIMES, number=1)[1:]
