"""`cuda.labelled_ranks CASES FOLDER`:
runs models on ranks whose tensors say that they are on a GPU, and saves by case the relative error against the CPU, how
often the host would have waited in a forward after the first, inside of blocks and elsewhere.

CASES: of [library, name, plan, dtype]; of `libraries`. A dtype may name the GPU's compute capability:
"fp16 on 7.5".
Under plans with stages, diffusers' are sampled and compared with the same on the CPU; counted is what more steps add.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

# Inference tensors cannot be labelled ones. What is imported from here on is decorated with this.
torch.inference_mode = torch.no_grad

from parallel_backend.errors import GroupError  # noqa: E402
from parallel_backend.groups.mesh import Axis  # noqa: E402
from parallel_backend.groups.timeline import Timeline  # noqa: E402
from parallel_backend.plan import ParallelPlan  # noqa: E402
from tests.support.cases.references import relative_error  # noqa: E402
from tests.support.labelled.tensors import ADA, GPU, on_gpu  # noqa: E402
from tests.support.labelled.watch import Watch, counted  # noqa: E402
from tests.support.labelled.whole_way import WholeWay  # noqa: E402
from tests.support.ranks.cuda.libraries import LIBRARIES, Bench  # noqa: E402
from worker.rank import job_groups  # noqa: E402


def with_more(
    watch: Watch, blocks: Iterable[torch.nn.Module], once: Callable[[], Any], more: Callable[[], Any] | None
) -> Any:
    """What comes of a second run. What is counted is of this one, or of what `more` adds to it."""
    result = counted(watch, blocks, once)
    if more:
        before, watch.outside = watch.outside, Counter()
        watch.begin()
        more()
        watch.end()
        watch.outside -= before
    return result


def on_ranks(cases: list, folder: str) -> dict[str, dict]:
    found, way, broken = {}, None, ""
    for case in cases:
        if broken:
            found[json.dumps(case)] = {"failed": f"not run, since the ranks were out of step after {broken}"}
            continue
        (library, name, degrees), (dtype, _, card) = case[:3], case[3].partition(" on ")
        major, minor = map(int, card.split(".")) if card else ADA
        told: dict[str, Any] = {}
        with on_gpu(counts_memory=False, capability=(major, minor)) as watch:
            way = way or WholeWay(Path(folder))
            bench = Bench(GPU, Path(folder), partial(with_more, watch))
            if library == "comfyui":
                bench.call, bench.timeline = partial(way.call, watch), way.timeline
            try:
                result, right = LIBRARIES[library](bench, name, ParallelPlan(**degrees), dtype)
                if result is not None and right is not None:
                    told["error"] = relative_error(result.cpu().float(), right)
                told |= {"inside": watch.inside, "outside": watch.outside}
                told["comfyui"] = dict(way.waits) if library == "comfyui" else {}
            except Exception:  # whatever it is fails that case's test; the others still run
                told["failed"] = "\n".join(traceback.format_exc().splitlines()[-12:])
                # The other ranks still wait for what this one would have sent: they end when it leaves.
                broken = json.dumps(case) if library == "comfyui" else ""
        found[json.dumps(case)] = told
    return found


def connect_ahead() -> None:
    """Labelled cards are connected twice before a plan is known. At first one of them fails."""
    connect = job_groups.world_axis

    def fail(*given: Any) -> Axis:
        axis = connect(*given)
        if dist.get_rank():
            raise GroupError("This card reaches no other.")
        return axis

    with on_gpu(counts_memory=False):
        groups = job_groups.JobGroups(GPU, Timeline(GPU))
        with patch.object(job_groups, "world_axis", fail):
            groups.connect_ahead(None)
        assert not groups.worlds
        groups.connect_ahead(None)
        with patch.object(job_groups, "world_axis", fail):
            mesh = groups.mesh_of(ParallelPlan(ulysses=2))
        assert mesh["ulysses"].group is groups.world_axis().group, "an axis over all ranks has been connected"
