"""Waits of the engine that a test takes away, one at a time, to see that the simulator misses each."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from parallel_backend import device
from parallel_backend.groups import calls, collectives
from parallel_backend.seams.exchange import ulysses
from parallel_backend.seams.pipeline.stages import StageLink
from parallel_backend.weights.parking import Parking
from parallel_backend.weights.prefetcher import BlockPrefetcher


class Wait(NamedTuple):
    """A wait in the product. codes: of the functions that wait, the innermost first. run: a case that needs it: what
    runs, and its plan."""

    codes: Sequence[types.CodeType]
    run: tuple[str, dict[str, Any]]


def inside(function: Callable[..., Any], *names: str) -> types.CodeType:
    """The code of a function, or of one within it. Raises StopIteration if there is none of that name."""
    code = function.__code__
    for name in names:
        code = next(each for each in code.co_consts if isinstance(each, types.CodeType) and each.co_name == name)
    return code


ARRIVE, MESSAGES = inside(ulysses.exchange, "wait"), inside(collectives.exchange_messages, "wait")
ULYSSES, SHARED, ON_HOST = {"ulysses": 2}, {"ulysses": 2, "weights": "shared"}, {"ulysses": 2, "weights": "host"}
STAGES = {"pipefusion": 2, "patches": 2, "sync_steps": 1}

WAITS = {
    "a copy of weights for the block before": Wait([inside(device.copier, "copy")], ("forwards", ON_HOST)),
    "a block for its copied weights": Wait([inside(device.copier, "copy", "<lambda>")], ("forwards", ON_HOST)),
    "a block for its gathered weights": Wait([inside(BlockPrefetcher._arrive)], ("forwards", SHARED)),
    "weights that move for their shards": Wait([inside(BlockPrefetcher.rearrange)], ("changes", SHARED)),
    "attention for its tokens": Wait([ARRIVE, inside(ulysses.scatter_heads, "arrived")], ("forwards", ULYSSES)),
    "a block for attention's results": Wait([ARRIVE, inside(ulysses.gather_heads, "arrived")], ("forwards", ULYSSES)),
    "attention for the ring's keys": Wait([MESSAGES], ("forwards", {"ring": 2})),
    "a stage for its tokens": Wait([inside(StageLink.take)], ("steps", STAGES)),
    "a patch's tokens for its last ones to have left": Wait([inside(StageLink._await_delivery)], ("steps", STAGES)),
    "a forward for all ranks' tokens": Wait([inside(collectives.gather)], ("forwards", ULYSSES)),
    "a result for another rank's rows": Wait([inside(calls.receive_into)], ("forwards", {"dp": 2})),
    "a picture for another rank's rows": Wait([inside(collectives.collect)], ("decode", {})),
    "a result for the last stage's prediction": Wait([inside(calls.receive_into)], ("steps", STAGES)),
    "a layer for its border rows": Wait([MESSAGES], ("decode", {})),
    "ranks for parked weights": Wait([inside(device.synchronise), inside(Parking.copy)], ("parking", ULYSSES)),
    "pinned memory for its last copy": Wait([inside(device.synchronise), inside(device.unpin)], ("release", ON_HOST)),
}
