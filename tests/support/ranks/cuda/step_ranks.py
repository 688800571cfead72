"""`cuda.step_ranks FOLDER [SIZE ...]`:
counts on labelled tensors what a step of stock asks of its GPU, and what ComfyUI's process and rank 0 ask of theirs on
the way from the node to the rank and back. One rank.

Saves by size, and by process (stock, comfyui, rank): see `Tally`, and the messages that it sends. Beside these: "waits
at", with their places; "error", the greatest difference from stock's result; "learnt", how often a step kept what
steps take.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

# Inference tensors cannot be labelled ones. What is imported from here on is decorated with this.
torch.inference_mode = lambda mode=True: torch.no_grad(mode) if callable(mode) else torch.no_grad()

from tests.support.labelled.one_rank import SIZES, OneRank  # noqa: E402
from tests.support.labelled.tally import Tally  # noqa: E402
from tests.support.labelled.tensors import GPU, on_gpu  # noqa: E402
from tests.support.labelled.whole_way import WholeWay  # noqa: E402
from worker.wire import job_channel  # noqa: E402

WARM = 2  # steps before, which make room and send conditions


def count(way: WholeWay, name: str, watch: Any) -> dict[str, Any]:
    tally = Tally()
    one = OneRank(way, SIZES[name], GPU, partial(tally.working, "rank"))
    sent = job_channel.send_pieces

    def note(connection: Any, frame: Any, *more: Any) -> None:
        tally.count("messages")
        sent(connection, frame, *more)

    watch.observer, watch.knows_pinned = tally, True
    noted = patch.object(job_channel, "send_pieces", note)
    with one.sampling(), noted, patch.object(one.remote.costs, "learn") as learn:
        for step in range(WARM):
            one.of_ranks(one.given(step))
        tally.forget()
        before, given = one.of_stock(one.given(WARM)), one.given(WARM)
        # The sampler's own work of the step before, which ComfyUI's process waits for.
        given[0][0].mul_(1)
        with tally.working("stock"):
            one.of_stock(given)
        given[0][0].mul_(1)
        with tally.working("comfyui"):
            found = one.of_ranks(given)
    watch.observer = None
    error = float((found - before).abs().max())
    return {"error": error, **tally.of, "waits at": tally.waits, "learnt": learn.call_count}


def on_ranks(folder: str, *sizes: str) -> dict[str, dict]:
    found = {}
    with on_gpu(counts_memory=False) as watch:
        way = WholeWay(Path(folder))
        for name in sizes or SIZES:
            found[name] = count(way, name, watch)
    return found
