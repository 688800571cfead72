"""`torchrun -m tests.support.ranks.cached.cache_ranks CASES OUT`:
samples models of both libraries with a step cache under plans, and beside it by `oracle.py` in each process; rank 0
saves how far they are apart, and what each skipped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import torch
import torch.distributed as dist

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.groups.mesh import Mesh, build_mesh, replica_axis
from parallel_backend.models import adapter_for, spec_named
from parallel_backend.parallel_model import ModelConditions, ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.caches import FIRST_BLOCK, CacheSettings
from parallel_backend.sampling.denoiser import Denoiser, Pass, Watch, denoise
from parallel_backend.sampling.stepper import Stepper
from parallel_backend.weights.stores import ShardedStore, Store
from tests.support.cases.families import FAMILIES, UNEVEN
from tests.support.cases.host import CASES as ROWS
from tests.support.ranks.cached.oracle import SerialFirstBlock, SerialTaylorSeer
from tests.support.ranks.host_ranks import Sampling
from tests.support.ranks.leaving import leave

STEPS, INTERVAL, GUIDANCE = 9, 3, 3.0
SIGMAS = torch.linspace(0.9, 0.0, STEPS + 1)
CPU = torch.device("cpu")


def stepper() -> Stepper:
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=SIGMAS[:-1].tolist())
    return Stepper(scheduler)


def everywhere(model: ParallelModel | DiffusersModel, fetched: bool) -> tuple[Sequence[int], Store | None]:
    """All of the blocks, and where their weights are shared out; or none."""
    if not fetched:
        return (), None
    return range(len(model.fetched.blocks)), ShardedStore(replica_axis(model.mesh.plan, CPU), CPU)


class HostRun:
    """A row of ComfyUI's own classes, without guidance."""

    def __init__(self, name: str, _short: bool) -> None:
        self.case = ROWS[name]
        self.model, self.spec = self.case.build(), spec_named(self.case.model_class)
        self.sampling = Sampling(self.case, self.model)

    def serial(self, cache: Any) -> torch.Tensor:
        latents, sampling = self.sampling.latents, self.sampling
        for sigma, following in zip(SIGMAS[:-1], SIGMAS[1:], strict=True):
            predicted = cache(0, lambda now=latents, at=float(sigma): sampling.predict(now, at))
            latents = latents + (following - sigma) * predicted
        return latents

    def parallel(self, mesh: Mesh, settings: CacheSettings, watch: Watch, fetched: bool) -> torch.Tensor | None:
        steps, sampling = stepper(), self.sampling
        scale = sampling.scale / steps.scheduler.config.num_train_timesteps
        given = Pass((0,), ModelConditions(sampling.kwargs, sampling.more))
        module = ParallelModel(self.model, mesh, torch.float32)
        module.fetched.rearrange(*everywhere(module, fetched))
        try:
            return denoise(
                module, sampling.latents, steps, [given], 1.0, timestep_scale=scale, cache=settings, watch=watch
            )
        finally:
            module.fetched.rearrange((), None)
            module.remove()


class FamilyRun:
    """A family of diffusers', with guidance: in one batch, or apart where the negative text is shorter."""

    def __init__(self, name: str, short: bool) -> None:
        self.family = FAMILIES[name]
        self.model, self.spec = self.family.build(), spec_named(self.family.model_class)
        sizes = self.family.shapes[UNEVEN][1:]
        self.latents, _, self.positive = self.family.inputs(1, *sizes)
        torch.manual_seed(2)
        self.negative = self.family.conditions(1, *sizes)
        if short:
            self.negative["encoder_hidden_states"] = self.negative["encoder_hidden_states"][:, :-3]
        self.apart = short

    def serial(self, cache: Any) -> torch.Tensor:
        latents, model, predict = self.latents, self.model, self.family.reference
        both = {
            name: torch.cat([value, self.negative[name]]) for name, value in self.positive.items() if not self.apart
        }
        scale = 1000 * adapter_for(self.family.model_class).timestep_scale
        for sigma, following in zip(SIGMAS[:-1], SIGMAS[1:], strict=True):

            def run(rows: torch.Tensor, conditions: dict, at: float = float(sigma) * scale) -> torch.Tensor:
                return predict(model, rows, torch.full((len(rows),), at), conditions)

            if self.apart:
                cond, uncond = (
                    cache(key, lambda now=latents, given=given, run=run: run(now, given))
                    for key, given in enumerate((self.positive, self.negative))
                )
            else:
                twice = torch.cat([latents, latents])
                cond, uncond = cache(0, lambda twice=twice, run=run: run(twice, both)).chunk(2)
            latents = latents + (following - sigma) * (uncond + GUIDANCE * (cond - uncond))
        return latents

    def parallel(self, mesh: Mesh, settings: CacheSettings, watch: Watch, fetched: bool) -> torch.Tensor | None:
        transformer = DiffusersModel(self.model, mesh)
        transformer.bring(*everywhere(transformer, fetched))
        try:
            return Denoiser(transformer).sample(
                self.latents, stepper(), self.positive, self.negative, GUIDANCE, cache=settings, watch=watch
            )
        finally:
            transformer.remove()


def settings_for(kind: str, run: HostRun | FamilyRun) -> CacheSettings:
    """A threshold far from any change of the residual, by which some forwards are skipped and some not."""
    if kind != FIRST_BLOCK:
        return CacheSettings(kind, interval=INTERVAL)
    every = SerialFirstBlock(run.model, run.spec, 0.0)
    run.serial(every)
    changes = sorted(every.changes)
    middle = len(changes) // 2
    return CacheSettings(kind, threshold=2 * (changes[middle - 1] + changes[middle]) / 2)


class OwnFirstBlock:
    """diffusers' own first-block cache on the plain model."""

    def __init__(self, model: Any, threshold: float) -> None:
        self.model = model
        model.enable_cache(diffusers.FirstBlockCacheConfig(threshold))

    def __call__(self, key: int, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        with self.model.cache_context(str(key)):
            return run()


@torch.inference_mode()
def main(cases_path: str, out_path: str) -> None:
    """Cases are JSON objects: id, library, name, plan, kind, and what else `result_of` reads."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    meshes: dict[ParallelPlan, Mesh] = {}
    results: dict[str, dict[str, Any]] = {}
    for case in json.loads(Path(cases_path).read_text()):
        plan = ParallelPlan.from_json(case["plan"])
        if plan not in meshes:
            meshes[plan] = build_mesh(plan, CPU)
        results[case["id"]] = result_of(case, meshes[plan])
    if dist.get_rank() == 0:
        Path(out_path).write_text(json.dumps(results))
    leave()


def result_of(case: dict[str, Any], mesh: Mesh) -> dict[str, Any]:
    """short: prompts of two lengths. threshold: in place of one that fits. last: the last rank's, in place of all
    ranks'. fetched: the blocks' weights are shared out. own: diffusers' own cache is what is compared with."""
    run = (HostRun if case["library"] == "comfyui" else FamilyRun)(case["name"], case.get("short", False))
    before = [set(vars(module)) for module in run.model.modules()]
    settings, oracle = settings_for(case["kind"], run), None
    if "threshold" in case:
        settings = replace(settings, threshold=case["threshold"])
    if settings.kind == FIRST_BLOCK:
        oracle = SerialFirstBlock(run.model, run.spec, settings.threshold)
    else:
        oracle = SerialTaylorSeer(run.model, run.spec, INTERVAL)
    wanted, watch = run.serial(oracle), Watch()
    if "last" in case and dist.get_rank() == dist.get_world_size() - 1:
        settings = replace(settings, threshold=case["last"])
    fetched = case.get("fetched", False)
    got, exact = run.parallel(mesh, settings, watch, fetched), run.parallel(mesh, CacheSettings(), Watch(), fetched)
    assert got is not None
    assert exact is not None
    left = [name for module, old in zip(run.model.modules(), before, strict=True) for name in vars(module).keys() - old]
    if case.get("own"):
        wanted = run.serial(OwnFirstBlock(run.model, settings.threshold))
    return {
        "error": float((got - wanted).norm() / wanted.norm()),
        "lossy": float((got - exact).norm() / exact.norm()),
        "equal": got.equal(exact),
        "skipped": list(watch.skipped or ()),
        "expected": [oracle.skipped, oracle.forwards],
        "left": left,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
