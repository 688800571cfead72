"""What a rank computes, holds and sends, counted from the operations that it runs."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

DEVICE = torch.ops.prim.device.default
ALLOCATED = 512  # bytes, of which CUDA's allocator gives multiples
SEND, RECEIVE, ALL_TO_ALL, ALL_GATHER, ALL_REDUCE = "send", "receive", "all_to_all", "all_gather", "all_reduce"
WEIGHTS = "weights"  # an all-gather of bytes, which rows of weights are
EXCHANGES = {
    "c10d::alltoall_base_": ALL_TO_ALL,
    "c10d::_allgather_base_": ALL_GATHER,
    "c10d::allreduce_": ALL_REDUCE,
    "_c10d_functional::all_reduce": ALL_REDUCE,
    "c10d::send": SEND,
    "c10d::recv_": RECEIVE,
}


class Exchange(NamedTuple):
    """A rank's part in a collective, or a message.

    shape, dtype: of what it gives, or of the message; of an all-to-all without the dim that is shared out.
    to, of: the rows that each of the group's ranks gets and gives in an all-to-all. peer: the other rank of a message.
    sent: bytes that the rank hands to others, where a ring does it: of an all-to-all all but its own rows; of an
    all-gather over N ranks N - 1 times its share; of an all-reduce 2 (N - 1) / N of the tensor; of a message all.
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    sent: float
    rank: int
    to: tuple[int, ...] = ()
    of: tuple[int, ...] = ()
    peer: int | None = None


def exchange_of(func: Any, args: tuple) -> Exchange:
    """What an operation of torch.distributed is. Raises KeyError for one that the engine is not known to use."""
    kind, group = EXCHANGES[func._schema.name], CollectiveOp.get_process_group(func, args)
    ranks, rank = tuple(dist.get_process_group_ranks(group)), dist.get_rank()
    given = args[1] if kind in (ALL_TO_ALL, ALL_GATHER) else args[0]
    given = given[0] if isinstance(given, list) else given
    if kind == ALL_GATHER and given.dtype == torch.uint8:
        kind = WEIGHTS
    whose = (kind, group.group_name, ranks)
    if kind == ALL_TO_ALL:
        of, to = args[3:5]
        row = given.nbytes / max(1, len(given))
        sent_bytes = row * (sum(to) - to[ranks.index(rank)])
        return Exchange(*whose, tuple(given.shape[1:]), given.dtype, sent_bytes, rank, tuple(to), tuple(of))
    peer = ranks[args[2]] if kind in (SEND, RECEIVE) else None
    others = len(ranks) - 1
    times = {SEND: 1, RECEIVE: 0, ALL_GATHER: others, WEIGHTS: others, ALL_REDUCE: 2 * others / len(ranks)}[kind]
    return Exchange(*whose, tuple(given.shape), given.dtype, given.nbytes * times, rank, peer=peer)


class Tally(TorchDispatchMode):
    """While entered, counts. live, peak: bytes on the device, of storages that this has seen. exchanges: in order.

    left: bytes that were given up, but that torch's allocator would not give to others yet. It waits until the host has
    learned that a message which used them has arrived, and the host runs far ahead of the device. taken: the most bytes
    that were live or left.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here."""
        return False

    def __init__(self, of_cpu: bool = False) -> None:
        """of_cpu: whether what is on the CPU counts, too."""
        super().__init__()
        self.of_cpu = of_cpu
        self.live = self.peak = self.flops = self.left = self.taken = 0
        self.exchanges: list[Exchange] = []
        self.seen: dict[int, weakref.ref] = {}
        self.messages: set[int] = set()  # storages on the device that were sent or received

    def hold(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's storage until it is given up."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // ALLOCATED) * ALLOCATED
        if (tensor.device.type == "cpu" and not self.of_cpu) or (key in self.seen and self.seen[key]() is not None):
            return

        def give_up(_storage: weakref.ref) -> None:
            self.live -= size
            self.left += size if key in self.messages else 0
            self.messages.discard(key)
            self.seen.pop(key, None)

        self.seen[key] = weakref.ref(storage, give_up)
        self.live += size
        self.peak, self.taken = max(self.peak, self.live), max(self.taken, self.live + self.left)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is DEVICE:  # asked for at each operation; a fake tensor's own answer takes ten times as long
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        made = func(*args, **(kwargs or {}))
        if func in collective_ops and func not in sync_ops:
            self.exchanges.append(exchange_of(func, args))
            if self.exchanges[-1].kind in (SEND, RECEIVE):
                self.messages |= {each.untyped_storage()._cdata for each in args[0] if each.device.type != "cpu"}
        if (packet := func._overloadpacket) in flop_registry:
            self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=made)
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(each, torch.Tensor):
                self.hold(each)
        return made


def sent(exchanges: list[Exchange]) -> Counter[str]:
    """Bytes that the rank hands to others, by kind."""
    found: Counter[str] = Counter()
    for each in exchanges:
        if each.kind != RECEIVE:
            found[each.kind] += each.sent
    return found


def mismatches(by_rank: Mapping[int, list[Exchange]]) -> Iterator[str]:
    """Where two ranks would wait for one another for ever, or get other data than was given.

    Of the groups that both are in, they come to the same collectives in the same order; what one sends to the other,
    the other receives, in that order.
    """
    for one, other in combinations(by_rank, 2):
        joint = [
            [each for each in by_rank[rank] if each.peer is None and {one, other} <= set(each.ranks)]
            for rank in (one, other)
        ]
        yield from unlike(f"collectives of the ranks {one} and {other}", *joint, meets)
        for sender, receiver in ((one, other), (other, one)):
            messages = [each for each in by_rank[sender] if each.kind == SEND and each.peer == receiver]
            awaited = [each for each in by_rank[receiver] if each.kind == RECEIVE and each.peer == sender]
            yield from unlike(f"messages of rank {sender} to rank {receiver}", messages, awaited, arrives)


def unlike(what: str, ones: list[Exchange], others: list[Exchange], fits: Any) -> Iterator[str]:
    if len(ones) != len(others):
        yield f"{what}: {len(ones)} and {len(others)}"
    for place, (one, other) in enumerate(zip(ones, others, strict=False)):
        if not fits(one, other):
            yield f"{what}, at {place}: {one} and {other}"
            return


def meets(one: Exchange, other: Exchange) -> bool:
    """Whether these are two ranks' parts in the same collective. An all-to-all's rows need only fit each other."""
    if ALL_TO_ALL in (one.kind, other.kind) and one.kind == other.kind:
        here, there = (one.ranks.index(each.rank) for each in (one, other))
        if one.to[there] != other.of[here] or one.of[there] != other.to[here]:
            return False
    return one[:5] == other[:5]


def arrives(message: Exchange, awaited: Exchange) -> bool:
    """Whether what one rank sends is what another waits for. Ranks know a link by the same name."""
    return message[1:5] == awaited[1:5]
