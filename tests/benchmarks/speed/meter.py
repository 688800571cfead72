"""What a rank sends and how long it is inside torch.distributed, seen from outside by wrapping its functions.

Bytes are those that a rank must hand to others, whatever the backend makes of them: an all-gather of x bytes over N
ranks is x (N - 1), an all-reduce 2 x (N - 1) / N. Seconds are the wall time of the calling thread: the transfer, and
the wait for a peer that is not there yet.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d

from parallel_backend.groups.collectives import ALL_GATHER


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def ranks_in(group: object) -> int:
    """The size of a group, given as any of the things that torch takes for one."""
    if group is None:
        return dist.get_world_size()
    if isinstance(group, dist.ProcessGroup):
        return group.size()
    return distributed_c10d._resolve_process_group(functional._resolve_group_name(group)).size()


def sent_by_all_to_all(_output, tensor, _output_splits=None, input_splits=None, group=None, **_rest) -> int:
    if input_splits is None:
        return nbytes(tensor) * (ranks_in(group) - 1) // ranks_in(group)
    own = input_splits[dist.get_rank(group)]
    return nbytes(tensor) * (sum(input_splits) - own) // max(1, sum(input_splits))


def sent_by_all_gather(_output, tensor, group=None, **_rest) -> int:
    return nbytes(tensor) * (ranks_in(group) - 1)


def sent_by_send(tensor, *_rest, **_options) -> int:
    return nbytes(tensor)


def sent_by_broadcast(tensor, src=None, group=None, **_rest) -> int:
    return nbytes(tensor) * (ranks_in(group) - 1) * (dist.get_rank() == src)


def sent_by_all_reduce(tensor, _op=None, group=None, **_rest) -> int:
    return 2 * nbytes(tensor) * (ranks_in(group) - 1) // ranks_in(group)


def sent_by_functional_all_to_all(tensor, _output_splits, input_splits, group, *_rest) -> int:
    if input_splits is None:
        return nbytes(tensor) * (ranks_in(group) - 1) // ranks_in(group)
    raise NotImplementedError("uneven functional all-to-all is not counted")


def sent_by_functional_all_gather(tensor, _dim, group, *_rest) -> int:
    return nbytes(tensor) * (ranks_in(group) - 1)


def nothing(*_args, **_options) -> int:
    return 0


# Both modules hold the function, and torch compares the two; `batch_isend_irecv` calls isend and irecv in turn.
PLAIN = {
    "all_to_all_single": sent_by_all_to_all,
    "all_gather": sent_by_all_gather,
    ALL_GATHER: sent_by_all_gather,
    "all_reduce": sent_by_all_reduce,
    "broadcast": sent_by_broadcast,
    "isend": sent_by_send,
    "send": sent_by_send,
    "irecv": nothing,
    "recv": nothing,
    "batch_isend_irecv": nothing,
}
FUNCTIONAL = {
    "all_to_all_single": sent_by_functional_all_to_all,
    "all_gather_single": sent_by_functional_all_gather,
    "all_reduce": lambda self, reduceOp, group, *_rest: sent_by_all_reduce(self, reduceOp, group),
    "wait_tensor": nothing,
}


@dataclass
class Meter:
    """Bytes sent and seconds spent by call since the last `reset`. Installed once a process, for good."""

    sent: Counter = field(default_factory=Counter)
    seconds: Counter = field(default_factory=Counter)
    calls: Counter = field(default_factory=Counter)
    depth: int = 0

    def install(self) -> Meter:
        for name, sent in PLAIN.items():
            wrapped = self.wrap(name, getattr(dist, name), sent)
            setattr(dist, name, wrapped)
            setattr(distributed_c10d, name, wrapped)
        for name, sent in FUNCTIONAL.items():
            setattr(functional, name, self.wrap(f"functional {name}", getattr(functional, name), sent))
        dist.Work.wait = self.wrap("wait", dist.Work.wait, nothing)
        return self

    def reset(self) -> None:
        for counter in (self.sent, self.seconds, self.calls):
            counter.clear()

    def wrap(self, name: str, function: Callable, sent: Callable[..., int]) -> Callable:
        @functools.wraps(function)
        def metered(*args, **options):
            self.sent[name] += sent(*args, **options)
            self.calls[name] += 1
            self.depth += 1
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.depth -= 1
                if not self.depth:  # a call within a call has its time counted by the outer one
                    self.seconds[name] += time.perf_counter() - started

        return metered
