"""`weights.order_ranks OUT`:
runs a small model whose weights are shared out while something happens on one rank alone, and saves what each asked for
and whether its output is right.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import world_axis
from parallel_backend.weights.stores import ShardedStore
from tests.support.cases.fetched_cases import BLOCKS, Model, Told, fetched_of, given, run
from tests.support.ranks.weights.fetching import CPU

FORWARDS = 3


def on_ranks() -> dict[str, dict]:
    warnings.simplefilter("error", FutureWarning)  # torch's of a collective's old name
    warnings.simplefilter("error", DeprecationWarning)
    rank, told = dist.get_rank(), {}
    axis = world_axis(CPU)

    def case(name: str, happens: Callable[[Model], None], expected: Callable[[Model], torch.Tensor | None]) -> None:
        """What happens to rank 1's model, and what that one then gives on it."""
        model, plain = Model(), Model()
        fetched = fetched_of(model)
        store = Told(ShardedStore(axis, CPU))
        fetched.rearrange(range(BLOCKS), store)
        if rank == 1:
            happens(model)
            happens(plain)
        right = []
        for _ in range(FORWARDS):
            with torch.inference_mode():
                wanted = expected(plain) if rank == 1 else plain(given())
            got = None
            if rank == 1 and name == "no rows":
                fetched.serve()
            else:
                got = run(model, fetched, given())
            right.append(got is wanted if got is None or wanted is None else got.equal(wanted))
        fetched.await_fetches()
        told[name] = {"asked": store.fetched, "right": right}

    def plainly(model: Model) -> torch.Tensor:
        return model(given())

    def nothing(_model: Model) -> None:
        return None

    case("nothing", lambda _: None, plainly)
    case("skips", lambda model: setattr(model, "skipped", (0, 2, BLOCKS - 1)), plainly)
    case("ends early", lambda model: setattr(model, "ends_after", 1), nothing)
    case("no rows", lambda _: None, nothing)
    return told
