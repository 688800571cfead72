"""Weights that are fetched, as a worker group's ranks have them, for programs without one; and buffers that are
poisoned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from parallel_backend.groups.mesh import Axis, Mesh, build_mesh, replica_axis
from parallel_backend.plan import HOST, SHARED, WHOLE, ParallelPlan
from parallel_backend.weights.host_memory import agree_on_memory
from parallel_backend.weights.prefetcher import BlockPrefetcher
from parallel_backend.weights.stores import HostStore, ShardedStore, Store

CPU = torch.device("cpu")
POISON = 0xFF  # in every byte: NaN in any floating point dtype, -1 in integers


class Way(NamedTuple):
    """kind: weights= of a plan. step: one block in so many is fetched, from the block `first` on."""

    kind: str
    first: int = 0
    step: int = 1

    def places(self, blocks: int) -> Sequence[int]:
        return range(self.first, blocks, self.step) if self.kind != WHOLE else ()


# One after the other on one model, which is read from its files by the first.
BY_FIRST: dict[str, list[Way]] = {
    SHARED: [Way(SHARED), Way(SHARED, 1, 2), Way(HOST, 0, 2), Way(WHOLE)],
    HOST: [Way(HOST), Way(HOST, 1, 2), Way(SHARED, 0, 2), Way(WHOLE)],
}


# The models that go from each way to the next. Others go from all blocks in one kind to some in the other, or
# to whole weights: how weights are moved does not depend on the class, and how its blocks are fetched does.
IN_EVERY_WAY = ("flux-dev", "wan-t2v")


def ways_from(kind: str, plan: ParallelPlan, model: str = IN_EVERY_WAY[0]) -> list[Way]:
    """Those that the plan allows."""
    ways = [way for way in BY_FIRST[kind] if way.kind != SHARED or plan.replicas > 1]
    return ways if model in IN_EVERY_WAY else ways[::2]


def poison_buffers() -> None:
    """From here on, what has run leaves no weights in its buffer, where a block that is read out of turn would find
    them."""
    leave = BlockPrefetcher._leave

    def poisoned(fetched: BlockPrefetcher, index: int, *given: Any) -> None:
        list(fetched.turns.values())[index].fill_(POISON)
        leave(fetched, index, *given)

    BlockPrefetcher._leave = poisoned


class Meshes:
    """By plan, its mesh, and the ranks that share weights under it."""

    def __init__(self) -> None:
        self.made: dict[ParallelPlan, tuple[Mesh, Axis]] = {}

    def of(self, plan: ParallelPlan) -> Mesh:
        if plan not in self.made:
            self.made[plan] = build_mesh(plan, CPU), replica_axis(plan, CPU)
        return self.made[plan][0]

    def store(self, kind: str, mesh: Mesh, fetched: BlockPrefetcher) -> Store | None:
        """That of before, if it is of the same kind."""
        if kind == WHOLE:
            return None
        if fetched.store and fetched.store.kind == kind:
            return fetched.store
        if kind == SHARED:
            return ShardedStore(self.made[mesh.plan][1], CPU)
        sizes = fetched.sizes
        memory = agree_on_memory((mesh["pipefusion"].index, sizes), HostStore.total(sizes), None)
        return HostStore(sizes, CPU, memory)


def same(got: Sequence[torch.Tensor | None], right: Sequence[torch.Tensor | None]) -> bool:
    """To the bit, NaN being equal to nothing."""
    return len(got) == len(right) and all(
        one is other if one is None or other is None else one.equal(other)
        for one, other in zip(got, right, strict=True)
    )
