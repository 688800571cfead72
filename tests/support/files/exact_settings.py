"""What a comparison with the exact setting decides, without a sampling: the exact plan, the key, and what failed. And
which steps of a lossy plan correct its prediction."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.support.host.mounted import mount

STEPS, SIZE = 4, torch.Size((1, 4, 8, 8))
PLANS = {
    "sparse": {"ulysses": 2, "sparse": "radial"},
    "sage": {"ulysses": 2, "attention": "sage_fp8"},
    "int4": {"ulysses": 2, "exchange_dtype": "int4"},
    "patches": {"pipefusion": 2, "patches": 4, "ulysses": 2},
    "patches, no ulysses": {"pipefusion": 2, "patches": 4},
    "whole": {"pipefusion": 2, "patches": 4, "sync_steps": STEPS},
    "flash": {"ulysses": 2, "attention": "flash"},
}


def main(comfyui: str) -> None:
    mount(comfyui)
    compared = importlib.import_module("pack.nodes.model.compared_sampling")
    errors = importlib.import_module("pack.worker.errors")
    importlib.import_module("folder_paths").set_user_directory(tempfile.mkdtemp())
    samplers = importlib.import_module("comfy.samplers")
    pack_plan = importlib.import_module("pack.parallel_backend.plan").ParallelPlan

    def stand_in(**plan: Any) -> Any:
        allows = lambda each: each.ulysses == 1 if plan == PLANS["patches, no ulysses"] else True  # noqa: E731
        return SimpleNamespace(
            plan=pack_plan(**plan), auto=None, allows=allows, source={}, runs_here=False, refused_comparisons={}
        )

    exact = {name: str(compared.find_exact_plan(stand_in(**plan), STEPS)) for name, plan in PLANS.items()}

    def key(plan: dict[str, Any] | None = None, sampler: Any = None, **scales: float) -> str:
        guider = SimpleNamespace(cfg=1.0, model_patcher=object(), conds={}, **scales)
        stock = compared.StockSampler(sampler or samplers.sampler_object("euler"), torch.linspace(1, 0, STEPS + 1))
        return compared.make_key(stand_in(**(plan or PLANS["int4"])), stock.describe(guider), SIZE)

    def scaled() -> Any:
        return samplers.KSAMPLER(samplers.sampler_object("euler").sampler_function, {"scaler": lambda x: x + 1})

    keys = {
        "the same": key() == key(),
        "a function of a process": key(sampler=scaled()) == key(sampler=scaled()),
        "a second scale of guidance": key(cfg1=2.0) == key(cfg1=3.0),
        "another sampler": key() == key(sampler=samplers.sampler_object("heun")),
        "another plan": key() == key(PLANS["sparse"]),
    }

    failing, told, tries = stand_in(**PLANS["int4"]), [], []
    record = SimpleNamespace(steps=[])
    sampler = compared.StockSampler(samplers.sampler_object("euler"), torch.linspace(1, 0, STEPS + 1))
    for error in (errors.RequestRefused("It lacks memory.", "Wait."), errors.WorkerGroupError("A rank died.", "Wait.")):
        failing.refused_comparisons.clear()

        def run(_plan: Any, error: Exception = error) -> Any:
            tries.append(error)
            raise error

        guider = SimpleNamespace(cfg=1.0)
        for _ in range(2):
            told.append(compared.compare(guider, failing, sampler, SIZE, torch.ones(SIZE), record, run).text)
    pick = importlib.import_module("pack.nodes.costs.plans").pick_usual_step
    steps = [(9.0, 0.1), (4.0, 0.2), (4.1, 0.3), (1.0, 0.4), (1.2, 0.5), (1.1, 0.6)]
    usual = {str(whole): pick(steps, whole) for whole in (0, 3, len(steps))} | {"one": pick(steps[:1], 0)}
    print(json.dumps({"exact": exact, "keys": keys, "told": told, "tries": len(tries), "usual": usual}))


if __name__ == "__main__":
    main(*map(str, map(Path, sys.argv[1:])))
