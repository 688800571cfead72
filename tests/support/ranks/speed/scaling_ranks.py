"""`torchrun -m tests.support.ranks.speed.scaling_ranks OPTIONS FOLDER`: one rank of scaling.py, the benchmark."""

from __future__ import annotations

import copy
import json
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import diffusers
import torch
import torch.distributed as dist

from parallel_backend.axes import JOINT_AXES
from parallel_backend.groups.mesh import Mesh, build_mesh
from parallel_backend.plan import ParallelPlan
from tests.benchmarks.speed.meter import Meter
from tests.benchmarks.speed.scaling import SHAPES, SMALL, VARIANTS, Shape, Variant
from tests.support.family_model import Denoiser, FamilyModel
from tests.support.links.profiles import counted_flops
from tests.support.ranks.leaving import leave

CPU = torch.device("cpu")


def build(shape: Shape) -> torch.nn.Module:
    """A diffusers model with seeded weights."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": shape.heads, "attention_head_dim": 64}
    if shape.model == "flux":
        return diffusers.FluxTransformer2DModel(
            in_channels=16,
            num_layers=shape.layers,
            num_single_layers=shape.single_layers,
            joint_attention_dim=shape.text_width,
            pooled_projection_dim=64,
            axes_dims_rope=(16, 24, 24),
            **heads,
        ).eval()
    return diffusers.PixArtTransformer2DModel(
        num_layers=shape.layers,
        cross_attention_dim=64 * shape.heads,
        sample_size=2 * shape.side,
        caption_channels=shape.text_width,
        in_channels=4,
        use_additional_conditions=False,
        **heads,
    ).eval()


def conditions(shape: Shape, batch: int, seed: int) -> dict[str, torch.Tensor]:
    """What the engine's spec of the model asks for."""
    torch.manual_seed(seed)
    text = {"encoder_hidden_states": torch.randn(batch, shape.text, shape.text_width)}
    if shape.model == "flux":
        return {**text, "pooled_projections": torch.randn(batch, 64)}
    return {**text, "resolution": torch.full((batch, 2), 16.0 * shape.side), "aspect_ratio": torch.ones(batch, 1)}


def seconds_of_other_threads() -> float:
    """CPU time of this process's threads but the main one, from the kernel's own count in nanoseconds."""
    others = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in others) / 1e9


class Meshes:
    """Meshes of plans with one axis, over the groups of one.

    Every group has threads that wake a hundred times a second, on gloo: with groups for each variant they would take
    a twentieth of the machine. Every rank makes it together.
    """

    def __init__(self) -> None:
        self.base = build_mesh(ParallelPlan(ulysses=dist.get_world_size()), CPU)

    def of(self, plan: ParallelPlan) -> Mesh:
        """The plan's mesh; that of this rank alone for the plan with no axis."""
        split = {name for name, degree in plan.degrees().items() if degree > 1}
        split |= {name for name, parts in JOINT_AXES.items() if split & set(parts)}
        shared, alone = self.base["ulysses"], self.base["dp"]
        axes = {name: shared if name in split else alone for name in self.base.axes}
        return replace(self.base, plan=plan, axes=axes)


class Contender:
    """A variant, ready to run on this rank."""

    def __init__(self, variant: Variant, shape: Shape, model: torch.nn.Module, meshes: Meshes, meter: Meter) -> None:
        self.variant, self.meter = variant, meter
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        model = copy.deepcopy(model, shared)  # hooks and stages of its own, the same weights
        if variant.peer:
            enable_context_parallel(model)
        mesh = meshes.of(ParallelPlan.from_json(variant.plan or {}))
        self.denoiser = Denoiser(FamilyModel(model, mesh))
        self.patches = mesh.plan.patch_count
        self.starts: list[float] = []
        model.register_forward_pre_hook(lambda *_: self.starts.append(time.perf_counter()))
        batch = variant.images or 1
        torch.manual_seed(3)
        self.latents = torch.randn(batch, 4, 2 * shape.side, 2 * shape.side)
        self.conditions = conditions(shape, batch, 1)
        self.negative = None if variant.images else conditions(shape, batch, 2)

    def sample(self, steps: int) -> torch.Tensor | None:
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(steps)
        return self.denoiser.sample(self.latents, scheduler, self.conditions, self.negative, 3.0)

    def measure(self) -> dict:
        """One run: seconds a step, where they went, and what was sent."""
        steps = self.variant.steps
        self.meter.reset()
        self.starts.clear()
        threads, thread, started = seconds_of_other_threads(), time.thread_time(), time.perf_counter()
        self.sample(steps)
        seconds, busy = time.perf_counter() - started, time.thread_time() - thread
        background = seconds_of_other_threads() - threads
        return {
            "seconds": seconds / steps,
            "stale_seconds": self.stale_seconds() if self.variant.stale else None,
            "communicating": sum(self.meter.seconds.values()) / steps,
            "busy": busy / steps,
            "background": background / steps,
            "sent": {name: sent / steps for name, sent in self.meter.sent.items()},
            "calls": {name: calls / steps for name, calls in self.meter.calls.items()},
            "spent": {name: spent / steps for name, spent in self.meter.seconds.items()},
        }

    def stale_seconds(self) -> float:
        """Seconds from one stale step's first patch to the next one's, on this stage; the first of them fills up."""
        firsts = self.starts[1 :: self.patches]
        return (firsts[-1] - firsts[1]) / (len(firsts) - 2)

    def flops(self) -> int:
        """Floating-point operations a step on this rank, of a stale step where there are any."""
        return counted_flops(lambda: self.sample(2)) - counted_flops(lambda: self.sample(1))


def enable_context_parallel(model: torch.nn.Module) -> None:
    """diffusers' own Ulysses. It takes its device from the accelerator that there is none of: told there is one CPU."""
    cpu = mock.Mock(type="cpu")
    with (
        mock.patch.object(torch._C, "_get_accelerator", return_value=cpu),
        mock.patch.object(torch.accelerator, "device_count", return_value=1),
    ):
        model.enable_parallelism(config=diffusers.ContextParallelConfig(ulysses_degree=dist.get_world_size()))


def main(options: str, folder: str) -> None:
    """Saves the rank's figures as FOLDER/RANK.json."""
    asked = json.loads(options)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    meshes, meter = Meshes(), Meter().install()
    shapes = SMALL if asked["small"] else SHAPES
    variants = [variant for variant in VARIANTS if variant.alone == "one" or asked["only"] in variant.name]
    models = {name: build(shapes[name]) for name in {variant.model for variant in variants}}
    contenders = [Contender(v, shapes[v.model], models[v.model], meshes, meter) for v in variants]

    def takes_part(contender: Contender) -> bool:
        return contender.variant.alone != "one" or rank == 0

    flops, results = {}, {}
    for contender in contenders:  # warms up, too
        if takes_part(contender):
            flops[contender.variant.name] = contender.flops()
            results[contender.variant.name] = contender.sample(2)
    if rank == 0:
        check_results(results)
    runs: dict[str, list[dict]] = {name: [] for name in flops}
    for turn in range(asked["rounds"]):
        for contender in random.Random(turn).sample(contenders, len(contenders)):
            dist.barrier()
            if takes_part(contender):
                runs[contender.variant.name].append(contender.measure())
        dist.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps({"runs": runs, "flops": flops}))
    leave()


def check_results(results: dict[str, torch.Tensor | None]) -> None:
    """A fast wrong answer is no answer: exact variants must agree with one rank."""
    for variant in VARIANTS:
        got = results.get(variant.name)
        if got is None or variant.stale or variant.images:
            continue
        wanted = results["flux, one rank" if variant.model == "flux" else "one rank"]
        error = float((got - wanted).norm() / wanted.norm())
        if error > 1e-4:
            raise SystemExit(f"{variant.name} is wrong: relative error {error:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
