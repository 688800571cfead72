"""`torchrun -m tests.support.ranks.cuda.fake_ranks CASES OUT`, of one process:
pretends to be ranks of large worlds, one after the other, and saves by case what was found.

CASES: a file of JSON, of [what, library, model, plan, blocks]. what: "figures", for the ranks that differ; or
"meeting", whether ranks that share a group wait for each other's collectives in vain. blocks: of each kind; None for
all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from parallel_backend.plan import ParallelPlan
from tests.support.fakes.measure import Figures, measure, meeting_ranks, unlike_ranks
from tests.support.fakes.models import LIBRARIES, Model
from tests.support.fakes.tally import mismatches, sent
from tests.support.ranks.leaving import end


def told(figures: Figures) -> dict[str, Any]:
    return {
        "blocks": figures.blocks,
        "weights": figures.weights,
        "told": figures.told,
        "to fetch": figures.to_fetch,
        "parameters": figures.parameters,
        "peak": figures.peak,
        "taken": figures.taken,
        "flops": figures.flops,
        "sent": sent(figures.exchanges),
    }


def meeting(model: Model, size: str, plan: ParallelPlan) -> list[str]:
    by_rank = {rank: measure(model, size, plan, rank).run for rank in meeting_ranks(plan)}
    return list(mismatches(by_rank))


def main(cases: str, out: str) -> None:
    torch.set_num_threads(1)
    found = {}
    for what, library, name, degrees, blocks in json.loads(Path(cases).read_text()):
        plan, model = ParallelPlan.from_json(degrees), LIBRARIES[library][name]
        model = model.shortened(blocks) if blocks else model
        size = next(iter(model.sizes))
        if what == "meeting":
            result: Any = meeting(model, size, plan)
        else:
            result = [told(measure(model, size, plan, rank)) for rank in unlike_ranks(plan)]
        found[json.dumps([what, library, name, degrees, blocks])] = result
    Path(out).write_text(json.dumps(found))
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
