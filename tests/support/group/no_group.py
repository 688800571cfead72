"""`group.no_group COMFYUI BASE LACKS MODEL VAE`:
Parallelize Model, a sampler and Parallelize VAE on a system that can have no group, against stock.

LACKS: "distributed" if its torch has no torch.distributed, "folder" if no folder for temporary files can be used.
MODEL: a case that `write_cases` has written to the folder BASE. VAE: a file in its models/vae. Returns whether the
results have the stock nodes' bits, what was said, whether anything of the model's file was read before it sampled, and
whether a network inside of a model that has the VAE takes the stock one into the ranks.
"""

from __future__ import annotations

import importlib
import tempfile
from types import SimpleNamespace
from typing import Any

import torch

from parallel_backend.plan import ParallelPlan
from tests.support.census.program import Census
from tests.support.census.rows import Row


def main(comfyui: str, base: str, lacks: str, model: str, vae: str) -> dict[str, Any]:
    census, row = Census(comfyui, base), Row(model)
    if lacks == "distributed":
        torch.distributed.is_available = lambda: False
    else:
        tempfile.tempdir = f"{base}/gone"
    node, vaes = (importlib.import_module(f"pack.nodes.{name}") for name in ("parallelize", "parallelize_vae"))
    plan = importlib.import_module("pack.parallel_backend.plan").ParallelPlan(**ParallelPlan(ulysses=4).to_json())
    groups, said = importlib.import_module("pack.nodes.workers.group"), census.said
    groups.Feed = lambda *_given: SimpleNamespace(start=lambda: None)
    server: Any = importlib.import_module("server").PromptServer
    server.instance = None

    found: dict[str, Any] = {}
    ours = node.parallelize(census.load(row, False), plan, 1)
    found["read before"] = ours.remote_module.weights.mapped is not None
    found["sampled"] = [census.sample(row, ours).equal(census.sample(row, census.load(row, False))) for _ in range(2)]
    latents = torch.randn((1, 16, 1, 6, 5), generator=torch.Generator().manual_seed(1))
    (stock,) = census.run("VAELoader", vae_name=vae)
    shared, half = (vaes.ParallelizeVAE.execute(stock, dtype).result[0] for dtype in ("auto", "bf16"))
    decoded = stock.decode(latents)
    found["decoded"] = [each.decode(latents).equal(decoded) for each in (shared, shared, half)]
    needed = importlib.import_module("pack.nodes.inside.networks").needed_of_vae
    found["needed"] = needed(shared) == needed(stock)
    refused, told = dict(found), list(said)
    object.__setattr__(ours.remote_module.group.settings, "when_not_parallel", "refuse")
    for name, run in {
        "model": lambda: census.sample(row, ours),
        "vae": lambda: shared.decode(latents),
    }.items():
        try:
            run()
        except importlib.import_module("pack.worker.errors").NoWorkerGroup as error:
            refused[name] = str(error)
    return {**refused, "said": told, "runs": ours.remote_module.group.runs.to_json()}
