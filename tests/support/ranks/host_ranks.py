"""`host_ranks CASES OUT`:
runs ComfyUI's own classes under plans, a forward or with stages a sampling, and saves what rank 0 gets, and what the
plain class gives. Returns by row what the plain class does in another way than its spec says.

ComfyUI, which COMFYUI_PATH names, is imported with this, and so once for all ranks that are forked off one process.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from typing import Any

import diffusers
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.models import spec_named
from parallel_backend.models.checks import patch_size_of
from parallel_backend.parallel_model import ParallelModel, RunOptions
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.denoiser import denoise
from parallel_backend.sampling.passes import Pass
from parallel_backend.sampling.stepper import Stepper
from parallel_backend.seams.forward import NodeCode
from tests.support.cases.host import CASES, HostCase
from tests.support.cases.host.base import SIGMA
from tests.support.cases.oracle import sample
from tests.support.spec_probe import mistakes_in
from worker.comfyui.model import import_comfyui
from worker.comfyui.source import HostSource

SIGMAS = torch.linspace(0.9, 0.0, 5)  # of a sampling's steps

import_comfyui(HostSource(os.environ["COMFYUI_PATH"], ("--cpu", "--use-pytorch-cross-attention"), "", "", "", ""))
from comfy.utils import pack_latents, unpack_latents  # noqa: E402


def flat(output: Any) -> torch.Tensor:
    """What a model returns, as one row."""
    parts = [output] if isinstance(output, torch.Tensor) else output
    return torch.cat([part.flatten().float() for part in parts])


def steps_of(case: HostCase, count: int = 1) -> list[list[Call]]:
    """The case's calls, step by step: latents and timesteps become less."""
    first = calls_of(case, count)
    factors = [0.8**step for step in range(1, case.steps)]
    return [
        first,
        *([Call(tuple(each * factor for each in args), kwargs) for args, kwargs in first] for factor in factors),
    ]


def calls_of(case: HostCase, count: int) -> list[Call]:
    """The case's call, and others of which each is narrower, with less text, than the one before."""
    args, kwargs = case.inputs()
    kwargs.setdefault("transformer_options", {})
    made = [Call(args, kwargs)]
    for less in range(1, count):
        narrower = args[0][..., : -2 * less].contiguous()
        made.append(Call((narrower, *args[1:]), kwargs | {"context": kwargs["context"][:, less:]}))
    return made


def scheduler_of_steps() -> Any:
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=SIGMAS[:-1].tolist())
    return scheduler


class Sampling:
    """A row as the sampling of what its model predicts. Latents of several parts, which only a stock sampler has, are
    one tensor here, as ComfyUI packs them."""

    def __init__(self, case: HostCase, model: torch.nn.Module) -> None:
        (x, timestep, *rest), self.kwargs = case.inputs()
        self.kwargs = {"transformer_options": {}, **dict(zip(("context",), rest, strict=False)), **self.kwargs}
        self.model, self.scale, self.parts = model, float(timestep[0]) / SIGMA, []
        if isinstance(x, list):
            x, self.parts = pack_latents(x)
        self.latents, self.more = x, x[:, :0]
        channels = self.predict(x, SIGMA).shape[1]
        self.latents, self.more = x[:, :channels], x[:, channels:]

    def arguments(self, latents: torch.Tensor, sigma: float) -> tuple:
        given = torch.cat([latents, self.more], 1)
        timestep = torch.full((len(given),), sigma * self.scale)
        return unpack_latents(given, self.parts) if self.parts else given, timestep

    def predict(self, latents: torch.Tensor, sigma: float) -> torch.Tensor:
        with torch.inference_mode():
            return self.packed(self.model(*self.arguments(latents, sigma), **self.kwargs))

    def packed(self, prediction: Any) -> torch.Tensor:
        return pack_latents(prediction)[0] if self.parts else prediction

    def serial(self, case: HostCase, plan: ParallelPlan) -> torch.Tensor:
        spec = spec_named(case.model_class)
        assert spec
        scheduler, dims = scheduler_of_steps(), self.latents.ndim - 2
        is_cut = plan.patch_count > 1
        return sample(
            self.model, spec, lambda _model, x, timestep, _given: self.predict(x, float(timestep[0])), scheduler,
            self.latents, None, patches=plan.patch_count, sync_steps=plan.sync_steps if is_cut else None,
            patch=patch_size_of(self.model, spec, dims) if is_cut else (1,) * dims,
            timestep_scale=1 / scheduler.config.num_train_timesteps,
        )  # fmt: skip

    def parallel(self, module: ParallelModel) -> torch.Tensor | None:
        stepper = Stepper(scheduler_of_steps())
        given = Pass((0,), self.kwargs, self.more)
        scale = self.scale / stepper.scheduler.config.num_train_timesteps
        return denoise(module, self.latents, stepper, [given], 1.0, timestep_scale=scale)

    def step_by_step(self, module: ParallelModel) -> torch.Tensor:
        """The same by Euler's method outside of the model, which asks for one step at a time: for as many calls as cfg
        has groups, of which the last one's result counts."""
        latents = self.latents.clone()
        for sigma, following in itertools.pairwise(SIGMAS.tolist()):
            found = module.run_calls([Call(self.arguments(latents, sigma), self.kwargs)] * module.mesh.plan.cfg)
            prediction = self.packed(found[-1]).float() if found else torch.empty_like(latents)
            dist.broadcast(prediction, 0)
            latents = latents + (following - sigma) * prediction
        assert not module.pipeline.why, module.pipeline.why
        return latents


once = functools.cache(build_mesh)


class Bench:
    """A row's model, made once for all cases of the row: plain, and under plans, each of which is taken off again."""

    def __init__(self, case: HostCase) -> None:
        self.case, self.model = case, case.build()
        self.mistakes: list[str] = []  # what the plain class does in another way than its spec says

    def plain(self, plan: ParallelPlan, count: int) -> list[Any]:
        """What the class gives of so many calls; with stages PipeFusion's serial reference."""
        if is_sampling(plan):
            return [Sampling(self.case, self.model).serial(self.case, plan)] * 2
        spec, outputs = spec_named(self.case.model_class), []

        def run() -> None:
            with torch.inference_mode():
                for calls in steps_of(self.case, count):
                    outputs.extend(self.model(*call.args, **call.kwargs) for call in calls)

        if spec and spec.blocks:
            self.mistakes += mistakes_in(self.model, spec, run)
        else:
            run()
        return outputs

    def parallel(self, plan: ParallelPlan, count: int) -> list[Any] | None:
        """Likewise, what rank 0 gets."""
        sampling = Sampling(self.case, self.model) if is_sampling(plan) else None
        module = ParallelModel(self.model, once(plan, torch.device("cpu")), torch.float32)
        try:
            if sampling:
                loop = sampling.step_by_step if sampling.parts else sampling.parallel
                return [loop(module), sampling.step_by_step(module)]
            with module.running_with(RunOptions(NodeCode.INSIDE)):
                outputs = [module.run_calls(calls) for calls in steps_of(self.case, count)]
        finally:
            module.remove()
        if any((dist.get_rank() == 0) != (found is not None) for found in outputs):
            raise SystemExit("Exactly rank 0 shall hold the result.")
        return [each for found in outputs for each in found or ()]


def is_sampling(plan: ParallelPlan) -> bool:
    return plan.pipefusion * plan.patch_count > 1


def on_ranks(wanted: list, out_path: str) -> dict[str, list[str]]:
    """Cases are a name in CASES, with the number of calls behind it if they are several, a plan, and whether it runs in
    parallel; else, the plain class runs on rank 0. Those of a row are done together, the plain ones first."""
    rank, results, mistakes = dist.get_rank(), {}, {}
    by_row: dict[str, list[tuple[str, Any, bool]]] = {}
    for case in wanted:
        by_row.setdefault(case[0].partition(" × ")[0], []).append(case)
    for row, cases in by_row.items():
        bench = Bench(CASES[row])
        for name, degrees, is_parallel in sorted(cases, key=lambda case: case[2]):
            run, count = bench.parallel if is_parallel else bench.plain, int(name.partition(" × ")[2] or 1)
            outputs = run(ParallelPlan.from_json(degrees), count) if is_parallel or rank == 0 else None
            if rank == 0 and outputs:
                results[f"{name} | {json.dumps(degrees)} | {is_parallel}"] = torch.cat(list(map(flat, outputs)))
        mistakes[row] = bench.mistakes
    if rank == 0:
        save_file(results, out_path)
    return mistakes
