"""Models of both libraries, as the engine runs them under a plan on a device, and as plain classes do in one process.

Libraries: "diffusers" for FAMILIES, "comfyui" for ComfyUI's own classes, "vae" for diffusers' VAE, "host-vae" for
ComfyUI's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffusers
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from parallel_backend.compat import kept_in_fp32
from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import Mesh, build_mesh, world_axis
from parallel_backend.groups.timeline import SILENT, Timeline
from parallel_backend.hooks import Hooks
from parallel_backend.models import spec_named
from parallel_backend.models.checks import modules_at
from parallel_backend.parallel_model import ParallelModel, moved
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.stepper import Stepper
from parallel_backend.vae.parallel import ParallelVAE
from parallel_backend.vae.pipeline import PipelineVAE
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import FAMILIES, SQUARE, UNEVEN, Family
from tests.support.cases.host import CASES, HostCase
from tests.support.cases.vaes.diffusers_vaes import ON_DEVICES as VAES
from tests.support.cases.vaes.host_vaes import VAES as HOST_VAES
from tests.support.family_model import Denoiser, FamilyModel
from tests.support.labelled.tensors import off_gpu
from tests.support.ranks.host_ranks import Sampling, calls_of, flat
from worker.comfyui.vae import use_chunk_bytes

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CPU = torch.device("cpu")
STEPS = 4
CALLS = " × "  # in a name, before the number of calls, if they are several
CHUNK = 1 << 16  # bytes of a video, that LTX's VAE computes at a time
# What rank 0 has, and what is right.
Results = tuple[torch.Tensor | None, torch.Tensor | None]
Once = Callable[[], Any]


@dataclass
class Bench:
    """This rank's device, and how a model is run there.

    folder: for files of models. run: (blocks, once) to what comes of calling `once`, as often as it likes; `more` is
    the same with twice as many steps, of what has steps. call: (module, calls) to what rank 0 gets of calls of one of
    ComfyUI's classes. timeline: of the meshes.
    """

    device: torch.device
    folder: Path
    run: Callable[[Iterable[torch.nn.Module], Once, Once | None], Any]
    call: Callable[[ParallelModel, list[Call]], Any] = ParallelModel.run_calls
    timeline: Timeline = SILENT
    meshes: dict[tuple[ParallelPlan, str], Mesh] = field(default_factory=dict)

    def mesh(self, plan: ParallelPlan, device: torch.device | None = None) -> Mesh:
        """Of which each is built once. All ranks call it together."""
        device = device or self.device
        key = (plan, device.type)
        if key not in self.meshes:
            self.meshes[key] = build_mesh(plan, device, timeline=self.timeline)
        return self.meshes[key]

    def source(self, name: str, family: Family, dtype: str) -> ModelSource:
        """The family's tiny model in a file, which rank 0 writes."""
        file = self.folder / name / "diffusion_pytorch_model.safetensors"
        if dist.get_rank() == 0 and not file.exists():
            with off_gpu():
                family.save(self.folder / name)
        dist.barrier()
        return ModelSource(family.model_class, family.config, (str(file),), dtype)


def of_diffusers(bench: Bench, name: str, plan: ParallelPlan, dtype: str) -> Results:
    family = FAMILIES[name]
    source = bench.source(name, family, dtype)
    if plan.pipefusion * plan.patch_count > 1:
        return sampled(bench, family, source, plan)
    inputs = family.inputs(*family.shapes[UNEVEN])
    model = FamilyModel.load(source, bench.mesh(plan)).of(family)
    result = bench.run(model.blocks, lambda: model(*inputs), None)
    return result, None if result is None else plain_diffusers(name)


def sampled(bench: Bench, family: Family, source: ModelSource, plan: ParallelPlan) -> Results:
    """By the loop, on rank 0, where the latents come back to; right is the same on the CPU."""
    latents, _, conditions = family.inputs(1, *family.shapes[SQUARE][1:])

    def run(model: FamilyModel, steps: int = STEPS) -> torch.Tensor | None:
        stepper = Stepper.prepare(diffusers.FlowMatchEulerDiscreteScheduler(), steps, device=model.mesh.device)
        return Denoiser(model).sample(latents, stepper, conditions)

    here, on_cpu = (FamilyModel.load(source, bench.mesh(plan, device)).of(family) for device in (bench.device, CPU))
    return bench.run(here.blocks, lambda: run(here), lambda: run(here, 2 * STEPS)), run(on_cpu)


def of_comfyui(bench: Bench, name: str, plan: ParallelPlan, dtype: str) -> Results:
    case = CASES[name.partition(CALLS)[0]]
    if plan.pipefusion > 1:
        return staged(bench, case, plan)
    with off_gpu():
        spec, model = spec_named(case.model_class), case.build(DTYPES[dtype])
    blocks = [block for row in spec.blocks for block in modules_at(model, row.path)] if spec else []
    module = ParallelModel(model.to(bench.device), bench.mesh(plan), DTYPES[dtype])
    # Some models take their residuals out of the lists that they are given.
    result = bench.run(blocks, lambda: bench.call(module, given(name, dtype)), None)
    return (torch.cat(list(map(flat, result))), plain_comfyui(name)) if result else (None, None)


def staged(bench: Bench, case: HostCase, plan: ParallelPlan) -> Results:
    """A sampling in pipeline stages, and PipeFusion's serial reference."""
    model = case.build()
    sampling = Sampling(case, model)
    right = sampling.serial(case, plan) if dist.get_rank() == 0 else None
    sampling.kwargs, sampling.more = moved((sampling.kwargs, sampling.more), bench.device)
    module = ParallelModel(model.to(bench.device), bench.mesh(plan), torch.float32)
    return bench.run((), lambda: sampling.parallel(module), None), right


def of_vae(bench: Bench, name: str, _plan: ParallelPlan, _dtype: str) -> Results:
    """A decode, by bands of rows where there are several ranks."""
    case = VAES[name]
    with off_gpu():
        vae = case.build()
    PipelineVAE(vae.to(bench.device), world_axis(bench.device), Hooks())

    def decode(vae: Any, device: torch.device) -> torch.Tensor:
        arguments = moved(case.arguments(), device)
        return vae.decode(case.latents().to(device), **arguments).sample

    result = bench.run([vae.decoder], lambda: decode(vae, bench.device), None)
    with off_gpu(), torch.no_grad():
        return (None, None) if dist.get_rank() else (result, decode(case.build(), CPU))


def of_host_vae(bench: Bench, name: str, _plan: ParallelPlan, _dtype: str) -> Results:
    """A decode of several frames, where there are any, by one of ComfyUI's own that draws no noise."""
    case = HOST_VAES[name]
    latents = case.latents(case.frames[-1] if case.frames else 0, case.rows[-1], 3)
    with off_gpu():
        model = case.made()
    vae = ParallelVAE(model.to(bench.device), world_axis(bench.device), case.sizes)
    with use_chunk_bytes(CPU, lambda _own: CHUNK), torch.no_grad():
        result = bench.run([vae.vae.decoder], lambda: vae.decode(latents), None)
        with off_gpu():
            return result, None if result is None else case.made().decode(latents)


LIBRARIES = {"diffusers": of_diffusers, "comfyui": of_comfyui, "vae": of_vae, "host-vae": of_host_vae}


@functools.cache
def plain_diffusers(name: str, device: torch.device = CPU, dtype: str = "fp32") -> torch.Tensor:
    family = FAMILIES[name]
    latents, timestep, conditions = family.inputs(*family.shapes[UNEVEN])
    with off_gpu():
        model = family.build().to(device, DTYPES[dtype])
    for path, weight in model.named_parameters():
        if any(part in path for part in kept_in_fp32(model)):  # as `from_pretrained` keeps them
            weight.data = weight.data.float()
    latents, conditions = in_dtype(latents, dtype), in_dtype(conditions, dtype)
    latents, timestep, conditions = tree_map(lambda value: value.to(device), (latents, timestep, conditions))
    # On a card, references make their own tensors there. A function mode does that, which `off_gpu` would take away.
    with off_gpu() if device == CPU else device, torch.no_grad():
        return family.reference(model, latents, timestep, conditions).cpu().float()


@functools.cache
def plain_comfyui(name: str, device: torch.device = CPU, dtype: str = "fp32") -> torch.Tensor:
    with off_gpu(), torch.no_grad():
        model = CASES[name.partition(CALLS)[0]].build(DTYPES[dtype]).to(device)
        calls = [moved(tuple(call), device) for call in given(name, dtype)]
        return torch.cat([flat(model(*args, **kwargs)) for args, kwargs in calls]).cpu()


PLAIN = {"diffusers": plain_diffusers, "comfyui": plain_comfyui}


def given(name: str, dtype: str) -> list[Call]:
    """The case's calls, one or as many as its name says, in a dtype as ComfyUI makes them: all but the timesteps."""
    row, _, count = name.partition(CALLS)
    return [
        Call((in_dtype(latents, dtype), timestep, *in_dtype(more, dtype)), in_dtype(kwargs, dtype))
        for (latents, timestep, *more), kwargs in calls_of(CASES[row], int(count or 1))
    ]


def in_dtype(value: Any, dtype: str) -> Any:
    """The same with its tensors of floats in a dtype."""
    return tree_map(
        lambda leaf: leaf.to(DTYPES[dtype]) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf,
        value,
    )
