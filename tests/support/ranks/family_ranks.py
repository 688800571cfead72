"""`family_ranks CASES`: runs cases on the engine as a plain script would; each result is of the rank that gets it."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from tests.support.cases.families import FAMILIES
from tests.support.cases.pipefusion_cases import family_of
from tests.support.family_model import FamilyModel, sampled


def on_ranks(cases: list[dict]) -> tuple[None, dict[str, torch.Tensor]]:
    """Cases are JSON objects of name, family, folder and plan. Those of a forward have a shape (batch first) and a
    dtype; others are a whole sampler call, see `pipefusion_cases`. A model is loaded once for those that follow each
    other with it."""
    once, results, loaded = functools.cache(build_mesh), {}, {}
    for case in cases:
        name, plan, dtype = case["family"], ParallelPlan.from_json(case["plan"]), case.get("dtype", "fp32")
        family = FAMILIES[name] if "shape" in case else family_of(name)
        key = (name, dtype, plan)
        if key not in loaded:
            mesh = once(plan, torch.device("cpu"))
            loaded = {key: FamilyModel.load(family.source(Path(case["folder"]), dtype), mesh).of(family)}
        if "shape" in case:
            found = loaded[key](*family.inputs(*case["shape"]))
            if (dist.get_rank() == 0) != (found is not None):
                raise SystemExit("Exactly rank 0 shall hold the result.")
        else:
            found = sampled(loaded[key], name, case["scheduler"], case["short_negative"])
        if found is not None:
            results[case["name"]] = found
    return None, results
