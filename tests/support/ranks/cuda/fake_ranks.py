"""`cuda.fake_ranks CASES OUT`, of one process:
pretends to be the ranks that differ, of large worlds, one after the other, and saves by case their figures.

CASES: a file of JSON, of [library, model, plan, blocks]. blocks: of each kind; None for all.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from parallel_backend.plan import ParallelPlan
from tests.support.fakes.measure import measure, unlike_ranks
from tests.support.fakes.models import LIBRARIES
from tests.support.ranks.leaving import end


def main(cases: str, out: str) -> None:
    torch.set_num_threads(1)
    found = {}
    for library, name, degrees, blocks in json.loads(Path(cases).read_text()):
        plan, model = ParallelPlan.from_json(degrees), LIBRARIES[library][name]
        model = model.shortened(blocks) if blocks else model
        figures = [vars(measure(model, plan, rank)) for rank in unlike_ranks(plan)]
        found[json.dumps([library, name, degrees, blocks])] = figures
    Path(out).write_text(json.dumps(found))
    end()
