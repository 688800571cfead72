"""Lists the communicators of a plan's ranks, what each is for, and the memory that a card gives to their buffers.

A communicator serves all axes over the same ranks, except for traffic that is in flight beside theirs: fetched weights,
and the links between stages. This module is pure: plans are estimated with it, and `mesh.py` builds what it
lists.

NCCL connects two ranks when they first exchange something, once for gathers and once for messages. `shake_hands` does
it before weights fill the card, so that memory that is measured then has it. Each connection has buffers for three
protocols on each of its channels, on the receiver's card: 0.5, 4.7 and 4 MiB, in pages of 2 MiB; and a page on the
sender's.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..axes import BATCH_AXES, MESH_AXES, REPLICA_AXES, TOKEN_AXES
from ..plan import SHARED, ParallelPlan
from .mesh_layout import rows_along

MIB = 1 << 20
RECEIVER, SENDER = 10 * MIB, 2 * MIB  # of a connection's channel
RING_CHANNELS, MESSAGE_CHANNELS = 4, 2  # that NCCL uses over PCIe for gathers, and for a message to one rank
Pairs = frozenset[tuple[int, int]]  # the sender's and the receiver's global numbers


@dataclass(frozen=True)
class Communicator:
    """ranks: global numbers, in ascending order. gathers: whether all of them gather. pairs: which of them send
    messages to which."""

    ranks: tuple[int, ...]
    gathers: bool = False
    pairs: Pairs = frozenset()

    def __or__(self, other: Communicator) -> Communicator:
        return Communicator(self.ranks, self.gathers or other.gathers, self.pairs | other.pairs)

    def count_bytes(self) -> Counter[int]:
        """Estimates the memory of its buffers on each rank's card, by the rank's global number."""
        found = Counter[int]()
        for sender, receiver in self.pairs:
            found[sender] += MESSAGE_CHANNELS * SENDER
            found[receiver] += MESSAGE_CHANNELS * RECEIVER
        if self.gathers:
            found.update(dict.fromkeys(self.ranks, RING_CHANNELS * (RECEIVER + SENDER)))
        return found


def over_all(ranks: Iterable[int]) -> Communicator:
    """Returns the communicator by which these ranks gather, and send to neighbours, as bands of a VAE do."""
    row = tuple(ranks)
    below = {*zip(row, row[1:], strict=False)}
    return Communicator(row, True, frozenset(below | {(lower, upper) for upper, lower in below}))


def of_axis(name: str, row: Iterable[int]) -> Communicator:
    """Returns the communicator of one row of ranks along an axis. Raises KeyError for an axis that it does not know."""
    ranks = tuple(row)
    if name == "ulysses":
        return Communicator(ranks, pairs=frozenset(itertools.permutations(ranks, 2)))
    if name == "ring":
        return Communicator(ranks, pairs=frozenset(zip(ranks, (*ranks[1:], ranks[0]), strict=True)))
    if name == "sequence":
        return Communicator(ranks, gathers=True)
    if name not in (*BATCH_AXES, "batch"):
        raise KeyError(name)  # a guess would be a deadlock on NCCL
    return Communicator(ranks, True, frozenset((rank, ranks[0]) for rank in ranks[1:]))


def list_axes(plan: ParallelPlan) -> list[Communicator]:
    """Lists the communicators of all rows of a plan's axes, in the order in which the ranks build them. Stages
    have links instead; the last one's link to the first returns the result."""
    found: dict[tuple[int, ...], Communicator] = {}
    for name, parts in MESH_AXES.items():
        split = [part for part in parts if getattr(plan, part) > 1]
        if not split or name == "pipefusion":
            continue
        for row in rows_along(plan, *split):
            each = of_axis(name, row)
            found[each.ranks] = found[each.ranks] | each if each.ranks in found else each
    return [*found.values()]


def list_links(plan: ParallelPlan) -> list[Communicator]:
    """Lists the links from each stage to the next one, and from the last to the first."""
    rows = rows_along(plan, "pipefusion") if plan.pipefusion > 1 else []
    following = [(sender, row[(index + 1) % len(row)]) for row in rows for index, sender in enumerate(row)]
    return [Communicator(tuple(sorted(pair)), pairs=frozenset((pair,))) for pair in following]


def list_replicas(plan: ParallelPlan) -> list[Communicator]:
    """Lists the communicators for fetched weights, which are in flight beside all others."""
    rows = rows_along(plan, *REPLICA_AXES)
    return [Communicator(tuple(row), gathers=True) for row in rows if len(row) > 1]


def list_communicators(plan: ParallelPlan) -> list[Communicator]:
    """Lists the communicators of a plan's ranks on GPUs, beside torch's own. The first is the VAE's, too."""
    if plan.world_size == 1:
        return []
    axes, world = list_axes(plan), over_all(range(plan.world_size))
    world = next((each | world for each in axes if each.ranks == world.ranks), world)
    others = [each for each in axes if each.ranks != world.ranks]
    weights = list_replicas(plan) if plan.weights == SHARED else []
    return [world, *others, *list_links(plan), *weights]


@functools.lru_cache(maxsize=256)
def count_communicator_bytes(plan: ParallelPlan) -> int:
    """Estimates the memory of communicators on the card of the rank with the most."""
    found = Counter[int]()
    for each in list_communicators(plan):
        found.update(each.count_bytes())
    return max(found.values(), default=0)


def count_weights_communicator(plan: ParallelPlan) -> int:
    """Estimates the memory of the communicator that fetched weights need with weights=shared."""
    return max((each.count_bytes()[each.ranks[0]] for each in list_replicas(plan)), default=0)


def count_side_by_side(plan: ParallelPlan) -> int:
    """Counts the kernels of communicators that a card may have to run side by side, so that ranks never wait for each
    other for ever, see docs/dev/06-gpu-path.md: each axis over tokens, both links of a stage, fetched weights."""
    tokens = sum(getattr(plan, axis) > 1 for axis in TOKEN_AXES)
    batch = int(plan.ways(BATCH_AXES) > 1)  # never beside the exchanges of tokens
    links = 2 if plan.pipefusion > 1 else 0
    return max(1, max(tokens, batch) + links) + (plan.weights == SHARED and plan.replicas > 1)
