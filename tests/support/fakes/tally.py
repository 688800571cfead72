"""What a rank holds and sends, counted from the operations that it runs."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.ops.prim.device.default
ALLOCATED = 512  # bytes, of which CUDA's allocator gives multiples
SEND, RECEIVE, ALL_TO_ALL, ALL_GATHER = "send", "receive", "all_to_all", "all_gather"
WEIGHTS = "weights"  # an all-gather of bytes, which rows of weights are
EXCHANGES = {
    "c10d::alltoall_base_": ALL_TO_ALL,
    "c10d::_allgather_base_": ALL_GATHER,
    "c10d::send": SEND,
    "c10d::recv_": RECEIVE,
}


def count_sent(func: Any, args: tuple) -> tuple[str, float]:
    """The kind of an operation of torch.distributed, and the bytes that this rank hands to others, where a ring does
    it: of an all-to-all all but its own rows; of an all-gather over N ranks N - 1 times its share; of a message all.
    Raises KeyError for an operation that the engine is not known to use."""
    kind, group = EXCHANGES[func._schema.name], CollectiveOp.get_process_group(func, args)
    ranks = dist.get_process_group_ranks(group)
    given = args[1] if kind in (ALL_TO_ALL, ALL_GATHER) else args[0]
    given = given[0] if isinstance(given, list) else given
    if kind == ALL_GATHER and given.dtype == torch.uint8:
        kind = WEIGHTS
    if kind == ALL_TO_ALL:
        to = args[4]
        return kind, given.nbytes / max(1, len(given)) * (sum(to) - to[ranks.index(dist.get_rank())])
    return kind, given.nbytes * {SEND: 1, RECEIVE: 0}.get(kind, len(ranks) - 1)


class Tally(TorchDispatchMode):
    """While entered, counts. live, peak: bytes on the device, of storages that this has seen. sent: bytes, by kind.

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
        self.live = self.peak = self.left = self.taken = 0
        self.sent: Counter[str] = Counter()
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
            kind, size = count_sent(func, args)
            if kind != RECEIVE:
                self.sent[kind] += size
            if kind in (SEND, RECEIVE):
                self.messages |= {each.untyped_storage()._cdata for each in args[0] if each.device.type != "cpu"}
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(each, torch.Tensor):
                self.hold(each)
        return made
