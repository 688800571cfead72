"""What a Parallel Sampler job must give: diffusers' own loop, or PipeFusion's oracle, in one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from safetensors.torch import load_file

from parallel_backend.models import known_spec
from tests.support.cases import oracle
from tests.support.cases.families import FAMILIES, Tensors
from tests.support.host.graphs import Job

GUIDANCE = 3.5  # what ComfyUI tells Flux where nothing else is said


@dataclass(frozen=True)
class Expected:
    """How one process samples a job.

    family: of `families`. channels: of the latents. scale, shift: of ComfyUI's latents against the model's.
    conditions: (job, base folder, positive or negative) to the family's conditions.
    """

    family: str
    channels: int
    conditions: Callable[[Job, Path, str], Tensors]
    scale: float = 1.0
    shift: float = 0.0

    def noise(self, job: Job) -> torch.Tensor:
        """As stock makes it, in the model's scale; 8 pixels a latent, or one where latents are pixels."""
        size = (job.height, job.width) if self.channels == 3 else (job.height // 8, job.width // 8)
        return torch.randn(job.batch, self.channels, *size, generator=torch.manual_seed(job.seed))

    def load(self, job: Job, base: Path) -> Any:
        folder = base / "models" / "diffusers" / job.name / "transformer"
        return getattr(diffusers, FAMILIES[self.family].model_class).from_pretrained(folder).eval()

    def sample(self, job: Job, base: Path, scheduler: Any) -> torch.Tensor:
        """ComfyUI's latents. scheduler: with its timesteps set. With PipeFusion in the plan, by the oracle."""
        model, plan = self.load(job, base), job.plan or {}
        family = FAMILIES[self.family]
        patch = family.patch if self.family == "flux-dev" else (model.config.patch_size,) * 2
        negative = self.conditions(job, base, job.negative) if job.cfg != 1 else None
        patches = plan.get("patches") or plan.get("pipefusion", 1)
        sync_steps = plan.get("sync_steps", 1) if patches > 1 else None
        noise = (
            self.noise(job) * scheduler.init_noise_sigma if hasattr(scheduler, "init_noise_sigma") else self.noise(job)
        )
        latents = oracle.sample(
            model, known_spec(family.model_class), family.reference, scheduler, noise,
            self.conditions(job, base, job.positive), negative, job.cfg, patches, sync_steps,
            patch=patch, timestep_scale=family.timestep_scale,
        )  # fmt: skip
        return latents / self.scale + self.shift


def label(job: Job, base: Path, what: str) -> Tensors:
    config = json.loads((base / "models" / "diffusers" / job.name / "model_index.json").read_text())
    names = {name.split(",")[0]: int(index) for index, name in config["id2label"].items()}
    index = int(what) if what.isdecimal() else names.get(what, len(names))
    return {"class_labels": torch.full((job.batch,), index)}


def text(job: Job, base: Path, what: str) -> dict[str, torch.Tensor]:
    return {
        name: tensor.expand(job.batch, *tensor.shape[1:]) for name, tensor in load_file(base / "input" / what).items()
    }


def sd3_conditions(job: Job, base: Path, what: str) -> Tensors:
    tensors = text(job, base, what)
    return {"encoder_hidden_states": tensors["conditioning"], "pooled_projections": tensors["pooled"]}


def flux_conditions(job: Job, base: Path, what: str) -> Tensors:
    return {**sd3_conditions(job, base, what), "guidance": torch.full((job.batch,), GUIDANCE)}


EXPECTED = {
    "shapes-dit": Expected("dit", 3, label),
    "tiny-dit": Expected("dit", 4, label, scale=0.18215),
    "tiny-sd3": Expected("sd3.5", 16, sd3_conditions, 1.5305, 0.0609),
    "tiny-flux": Expected("flux-dev", 16, flux_conditions, 0.3611, 0.1159),
}


def scheduler_in(job: Job, base: Path, scheduler_class: type | None = None, **others: Any) -> Any:
    """The scheduler of the model's folder, or another class with its settings, set as diffusers' pipelines set it."""
    folder = base / "models" / "diffusers" / job.name / "scheduler"
    config = json.loads((folder / "scheduler_config.json").read_text())
    scheduler = (scheduler_class or getattr(diffusers, config["_class_name"])).from_config(config, **others)
    arguments: dict[str, Any] = {"num_inference_steps": job.steps}
    if isinstance(scheduler, diffusers.FlowMatchEulerDiscreteScheduler):
        arguments = {"sigmas": np.linspace(1.0, 1 / job.steps, job.steps)}
    scheduler.set_timesteps(**arguments)
    return scheduler
