"""Measures how fast ranks compute and exchange. All ranks measure at the same time, as in a step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .device import copier, is_accelerator, name_of, pin_now, synchronise
from .groups.collectives import ALL_GATHER, gather_numbers
from .groups.mesh import Axis

MEASURED = 32 << 20  # bytes sent to measure a link
TIMES = 3
HEAD_DIMS = (32, 128)  # attention's time is linear in the head dim
WIDTH = 512  # of a token, for operations that are no products
TINY, TINY_TIMES = 8, 50  # how wide a tiny operation's token is, and how often it runs
LEAST_HIDDEN = 0.01
READ = 8  # matrices that are read in turn, so that no cache has them
NANOSECONDS = 1_000_000_000
NAME_BYTES = 96


class Amounts(NamedTuple):
    """The sizes of the measurements.

    side: tokens of a product; their width is half of it, and the result's width twice it.
    tokens, heads: of attention.
    elements: of what other operations read. repeats: how often they run.
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
    name = name_of(device).encode()[:NAME_BYTES].ljust(NAME_BYTES)
    names = [bytes(each).decode(errors="replace").strip() for each in gather_numbers(tuple(name), control)]
    computing = speeds_of(device, dtype, amounts)
    speeds = [
        {"name": own, **dict(zip(computing, map(float, row), strict=True)), "operation": row[-1] / NANOSECONDS}
        for own, row in zip(names, gather_numbers([*map(int, computing.values())], control), strict=True)
    ]
    found = links_of(axis, device, amounts, computing["memory"])
    hidden = int(hidden_share(axis, device, dtype, amounts) * NANOSECONDS)
    of_links = [int(value) for link in found.values() for value in link]
    rows = gather_numbers([hidden, host_rate(device), *of_links], control)
    hides, host, *values = (column for column in zip(*rows, strict=True))
    pairs = zip(values[::2], values[1::2], strict=True)
    links = {kind: [min(rates), max(waits) / NANOSECONDS] for kind, (rates, waits) in zip(found, pairs, strict=True)}
    return {"speeds": speeds, **links, "host": min(host), "hides": statistics.median(hides) / NANOSECONDS}


@torch.inference_mode()
def speeds_of(device: torch.device, dtype: torch.dtype, amounts: Amounts) -> dict[str, float]:
    """Measures a device, see `Speed`. The last figure is `operation`, in nanoseconds."""
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

    def activate() -> None:
        for _ in range(amounts.repeats):
            F.gelu(tokens, approximate="tanh")

    few, many = (usual(attention_of(dim, dtype, device, amounts), device) for dim in HEAD_DIMS)
    scores = amounts.tokens**2 * amounts.heads
    by_dim = max(many - few, many / 2) / (HEAD_DIMS[1] - HEAD_DIMS[0])  # at least, if noise says less
    softmax = max(many - by_dim * HEAD_DIMS[1], many / 100)
    matrices = torch.ones(READ, 2 * side, side // 2, dtype=dtype, device=device)
    return {
        "linear": 2 * side**3 / usual(lambda: F.linear(given, weight, bias), device),
        "attention": 4 * scores / by_dim,
        "memory": 9 * amounts.repeats * tokens.nbytes / usual(move, device),
        "scores": scores / softmax,
        "functions": 2 * amounts.repeats * tokens.nbytes / usual(activate, device),
        "weights": matrices.nbytes / usual(lambda: [F.linear(given[:1], each) for each in matrices], device),
        "operation": max(1, operation_seconds(device) * NANOSECONDS),
    }


def operation_seconds(device: torch.device) -> float:
    """Measures how long a tiny operation takes: on a CPU with the Python of the modules around it, which a card's
    queue hides."""
    token = torch.ones(1, TINY, TINY, device=device)
    if is_accelerator(device):
        return usual(lambda: [token + token for _ in range(TINY_TIMES)], device) / TINY_TIMES
    module = TinyModule()
    return usual(lambda: [module(token) for _ in range(TINY_TIMES)], device) / TINY_TIMES / module.operations


class TinyModule(torch.nn.Module):
    """A few operations in a few modules, as in a transformer's block."""

    operations = 6

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(TINY)
        self.first, self.last = torch.nn.Linear(TINY, 3 * TINY), torch.nn.Linear(TINY, TINY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        query, key, value = self.first(self.norm(tokens)).unflatten(-1, (3, TINY)).unbind(-2)
        return tokens + self.last(query * key + value)


def attention_of(dim: int, dtype: torch.dtype, device: torch.device, amounts: Amounts) -> Callable[[], Any]:
    """Returns a function that computes attention with this head dim."""
    query, key, value = (torch.ones(1, amounts.heads, amounts.tokens, dim, dtype=dtype, device=device) for _ in "qkv")
    return lambda: F.scaled_dot_product_attention(query, key, value)


def links_of(axis: Axis, device: torch.device, amounts: Amounts, fastest: float) -> dict[str, tuple[float, float]]:
    """Measures each kind of exchange: the bytes a second that this rank sends, and the nanoseconds of latency.

    fastest: the bytes a second of the device's memory. No link is faster. A busy machine can delay the few bytes as
    long as the many, which would make the link look unlimited.
    """
    found = {}
    for kind in ("all_to_all", "all_gather", "send", "collect"):
        waits, seconds = (quickest(exchange(kind, size, axis, device), device) for size in (amounts.few, amounts.sent))
        least = (amounts.sent - amounts.few) / fastest
        found[kind] = ((amounts.sent - amounts.few) / max(seconds - waits, least), max(1, waits * NANOSECONDS))
    return found


def hidden_share(axis: Axis, device: torch.device, dtype: torch.dtype, amounts: Amounts) -> float:
    """Measures which share of an exchange takes no time while products are computed that take as long. Above zero.

    As in a forward, the device is busy when the exchange begins, and what it waits for has just been computed.
    """
    given, weight = (torch.ones(rows, WIDTH, dtype=dtype, device=device) for rows in (amounts.side, WIDTH))
    result = torch.empty_like(given)
    send = start_exchange("all_to_all", amounts.sent, axis, device)
    sending = usual(lambda: send()(), device)
    times = max(1, round(sending / usual(lambda: torch.mm(given, weight, out=result), device)))

    def compute() -> None:
        for _ in range(times):
            torch.mm(given, weight, out=result)

    def overlap() -> None:
        compute()
        finish = send()
        compute()
        finish()

    computing, both = usual(compute, device), usual(overlap, device)
    return min(1.0, max(LEAST_HIDDEN, (sending + 2 * computing - both) / min(sending, computing)))


def exchange(kind: str, size: int, axis: Axis, device: torch.device) -> Callable[[], Any]:
    """Returns a function that sends this many bytes to the other ranks of an axis."""
    start = start_exchange(kind, size, axis, device)
    return lambda: start()()


def start_exchange(kind: str, size: int, axis: Axis, device: torch.device) -> Callable[[], Callable[[], Any]]:
    """Returns a function that starts to send this many bytes to the other ranks of an axis. It returns a function that
    waits for them."""
    others = axis.degree - 1
    share = torch.zeros(size // others if kind == "all_gather" else size, dtype=torch.uint8, device=device)
    if kind == "all_gather":
        whole = share.new_empty(len(share) * axis.degree)
        return lambda: getattr(dist, ALL_GATHER)(whole, share, group=axis.group, async_op=True).wait
    if kind == "all_to_all":
        given = share.new_zeros(size // others * axis.degree)
        arrived = torch.empty_like(given)

        def swap() -> Callable[[], Any]:
            work = dist.all_to_all_single(arrived, given, group=axis.group, async_op=True)
            assert work
            return work.wait

        return swap
    arriving = torch.empty_like(share)

    def pass_on() -> Callable[[], Any]:
        transfers = list_transfers(kind, share, arriving, axis)
        works = dist.batch_isend_irecv(transfers) if transfers else []
        return lambda: [work.wait() for work in works]

    return pass_on


def list_transfers(kind: str, share: torch.Tensor, arriving: torch.Tensor, axis: Axis) -> list[dist.P2POp]:
    """Returns what this rank sends and receives: round a ring, or to the first rank from the second alone."""
    following, preceding = (axis.global_rank((axis.index + step) % axis.degree) for step in (1, -1))
    if kind == "collect":
        receives = [dist.P2POp(dist.irecv, arriving, following, axis.group)] * (axis.index == 0)
        return receives or [dist.P2POp(dist.isend, share, preceding, axis.group)] * (axis.index == 1)
    send = dist.P2POp(dist.isend, share, following, axis.group)
    return [send, dist.P2POp(dist.irecv, arriving, preceding, axis.group)]


def peer_rate(axis: Axis, device: torch.device) -> int:
    """Measures the bytes a second that this rank receives from the others of an axis."""
    return int(MEASURED / quickest(exchange("all_gather", MEASURED, axis, device), device))


def host_rate(device: torch.device) -> int:
    """Measures the bytes a second that this rank copies from pinned memory."""
    memory = torch.zeros(MEASURED, dtype=torch.uint8)
    pin_now(memory, device)
    target, copy = torch.empty_like(memory, device=device), copier(device)
    return int(MEASURED / quickest(lambda: copy(target, memory)(), device))


def quickest(action: Callable[[], Any], device: torch.device) -> float:
    """Returns the seconds of the quickest run of a few."""
    return min(time_runs(action, device))


def usual(action: Callable[[], Any], device: torch.device) -> float:
    """Returns the median seconds of a few runs."""
    return statistics.median(time_runs(action, device))


def time_runs(action: Callable[[], Any], device: torch.device) -> list[float]:
    """Returns the seconds of a few runs. The first run is not counted."""
    seconds = []
    for _ in range(1 + TIMES):
        synchronise(device)
        start = time.perf_counter()
        action()
        synchronise(device)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]
