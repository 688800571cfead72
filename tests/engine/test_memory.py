"""What the ranks hold and read together is one copy of the model, and the parts that the methods leave on every rank.

PipeFusion leaves on every stage what is not a block: embedders and head. Ulysses leaves all of it on each of its ranks.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import FAMILIES
from tests.support.ranks.pool import RankPool

FLUX = FAMILIES["flux-dev"]
PLANS = {
    "stages": {"pipefusion": 2},
    "tokens": {"ulysses": 2},
    "both": {"pipefusion": 2, "ulysses": 2},
}

Held = list[dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's one file."""
    return FLUX.save(tmp_path_factory.mktemp("flux")) / "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def loaded(whole: Path, ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Held, list[int]]]:
    """By name of the plan, what each rank holds, and the bytes that each has read."""
    root = tmp_path_factory.mktemp("memory")
    source = asdict(ModelSource(FLUX.model_class, FLUX.config, (str(whole),)))
    for world in {math.prod(plan.values()) for plan in PLANS.values()}:
        cases = [
            {"name": name, "plan": plan, "source": source}
            for name, plan in PLANS.items()
            if math.prod(plan.values()) == world
        ]
        (root / "cases.json").write_text(json.dumps(cases))
        ranks.run(world, "weights.memory_ranks", str(root / "cases.json"), str(root))
    results = {}
    for name, plan in PLANS.items():
        paths = [root / f"{name}.{rank}.safetensors" for rank in range(math.prod(plan.values()))]
        read = []
        for path in paths:
            with safe_open(path, framework="pt") as file:
                read.append(int(file.metadata()["bytes_read"]))
        results[name] = [load_file(path) for path in paths], read
    return results


def copies(name: str, plan: dict[str, int]) -> int:
    """How many times the ranks hold a parameter's values, all ranks together."""
    stages = 1 if "transformer_blocks." in name else plan.get("pipefusion", 1)
    return stages * plan.get("ulysses", 1)


@pytest.mark.parametrize("load", PLANS)
def test_ranks_hold_one_copy_and_what_the_methods_replicate(load: str, whole: Path, loaded: dict) -> None:
    held, _ = loaded[load]
    for name, tensor in load_file(whole).items():
        values = sum(rank[name].numel() for rank in held if name in rank)
        assert values == copies(name, PLANS[load]) * tensor.numel(), name


@pytest.mark.parametrize("load", PLANS)
def test_a_rank_reads_what_it_holds_and_nothing_else(load: str, loaded: dict) -> None:
    for held, read in zip(*loaded[load], strict=True):
        assert read == sum(tensor.nbytes for tensor in held.values())
