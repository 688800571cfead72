"""Calls of pipelines under plans that keep something from step to step, for the tests and their ranks."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffusers
import numpy as np
import torch

from parallel_backend.plan import ParallelPlan
from tests.support.cases.families import FAMILIES, Family
from tests.support.cases.library_cases import CALLS, STEPS, TEXT_TOKENS, embeddings, seeded

Tensors = dict[str, torch.Tensor]
SIDE = 16  # latent pixels


@dataclass(frozen=True)
class Loop:
    """The same sampling as a pipeline's call and as a loop around the model.

    call: of CALLS. family: of its model. conditions: of a batch of one. packed: whether the pipeline returns tokens.
    """

    call: str
    family: str
    conditions: Tensors
    negative: Tensors | None = None
    guidance: float = 1.0
    packed: bool = False

    @property
    def model(self) -> Family:
        return FAMILIES[self.family]

    def latents(self, result: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) of what the pipeline returns."""
        if not self.packed:
            return result
        unpack: Any = diffusers.FluxPipeline._unpack_latents
        return unpack(result, 8 * SIDE, 8 * SIDE, 8)

    def noise(self) -> torch.Tensor:
        """What the pipeline draws for its first latents."""
        return torch.randn(1, 4, SIDE, SIDE, generator=seeded())


def texts(text: int, pooled: int) -> Tensors:
    tokens = embeddings(text, 1, TEXT_TOKENS, 32)
    return {"encoder_hidden_states": tokens, "pooled_projections": embeddings(pooled, 1, 16)}


def flux_texts(text: int, pooled: int) -> Tensors:
    return {**texts(text, pooled), "guidance": torch.tensor([3.5])}


LOOPS = {
    "SD3": Loop("SD3", "sd3.5", texts(1, 2), texts(3, 4), 3.0),
    "Flux": Loop("Flux", "flux-dev", flux_texts(1, 2), packed=True),
    "Flux, two forwards": Loop("Flux, two forwards", "flux-dev", flux_texts(1, 2), flux_texts(3, 4), 3.0, packed=True),
}
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
SCHEDULERS: dict[str, Callable[[], Any]] = {
    "Euler": diffusers.FlowMatchEulerDiscreteScheduler,
    "Heun": diffusers.FlowMatchHeunDiscreteScheduler,
    "DPM++ 2M": lambda: diffusers.DPMSolverMultistepScheduler(**FLOW),
    "UniPC": lambda: diffusers.UniPCMultistepScheduler(**FLOW),
}


def scheduler_of(loop: Loop, name: str) -> Any:
    """With the timesteps that the loop's pipeline sets."""
    scheduler = SCHEDULERS[name]()
    linear = {"sigmas": np.linspace(1.0, 1 / STEPS, STEPS)} if loop.packed else {"num_inference_steps": STEPS}
    scheduler.set_timesteps(**linear)
    return scheduler


@dataclass(frozen=True)
class LoopCase:
    """A pipeline's own call by a plan that keeps something from step to step."""

    loop: str
    scheduler: str
    plan: ParallelPlan

    def __str__(self) -> str:
        return f"{self.loop}, {self.scheduler}, {self.plan}"


INT4 = LoopCase("Flux", "Euler", ParallelPlan(ulysses=2, exchange_dtype="int4"))
PATCHES = [
    LoopCase("SD3", "Euler", ParallelPlan(pipefusion=2)),
    LoopCase("Flux", "Euler", ParallelPlan(pipefusion=2, patches=3)),
    LoopCase("Flux, two forwards", "Euler", ParallelPlan(pipefusion=2)),
    LoopCase("SD3", "Heun", ParallelPlan(ulysses=2, patches=3, sync_steps=2)),
    LoopCase("SD3", "DPM++ 2M", ParallelPlan(pipefusion=2)),
    LoopCase("SD3", "UniPC", ParallelPlan(ring=2, patches=2)),
    LoopCase("SD3", "Euler", ParallelPlan(pipefusion=2, cfg=2)),
    LoopCase("Flux", "Euler", ParallelPlan(pipefusion=2, ulysses=2)),
    LoopCase("Flux", "Euler", ParallelPlan(pipefusion=3)),
]


def pipeline_of(case: LoopCase) -> diffusers.DiffusionPipeline:
    pipeline = CALLS[LOOPS[case.loop].call].pipeline()
    pipeline.scheduler = SCHEDULERS[case.scheduler]()
    return pipeline


# What a loop that calls the model twice a step does; by rank, how many blocks run in each step; and why its calls do
# not run side by side.
APART = "cfg=2 cannot run calls of Loop side by side, so that some ranks wait: "
LOOPS_OF_TWO: dict[str, tuple[list[int], list[int], str]] = {
    "two calls": ([2, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], ""),
    "other prompt": ([2, 1, 1, 2, 1, 1], [0, 1, 1, 1, 1, 1], ""),
    "one call": ([2, 1, 1, 1, 2, 1], [0, 1, 1, 0, 0, 1], ""),
    "other latents": ([2, 1, 1, 2, 2, 2], [0, 1, 1, 1, 0, 0], ""),
    "written": ([2, 1, 1, 2, 1, 1], [0, 1, 1, 1, 1, 1], ""),
    "other order": ([2, 1, 1, 1, 2, 1], [0, 1, 1, 1, 0, 1], ""),
    "never two": ([1] * 6, [0] * 6, f"{APART}it calls the model once a step.\n"),
    "always other latents": ([2] * 6, [0] * 6, f"{APART}its calls of a step differ in hidden_states.\n"),
    "other conditions each step": (
        [2] * 6, [0] * 6, f"{APART}more than latents and timestep changes from step to step.\n"
    ),
}  # fmt: skip
PROMPTS = ["a red cat", "two dogs", "a boat"]
SMALL = {"num_inference_steps": STEPS, "guidance_scale": 3.0, "height": 32, "width": 48, "max_sequence_length": 16}


@dataclass(frozen=True)
class OwnCall:
    """A call of a whole pipeline, from words to pixels. run: returns its tensors by name."""

    run: Callable[[diffusers.DiffusionPipeline], Tensors]
    plan: ParallelPlan
    images: str = "all"
    vae: bool = False


def with_callbacks(pipeline: Any) -> Tensors:
    """One that changes the latents, and ends the loop before its last step; and the progress bar."""
    steps, written = [], io.StringIO()

    def callback(pipeline: Any, step: int, timestep: torch.Tensor, given: Tensors) -> Tensors:
        steps.append([step, float(timestep)])
        pipeline._interrupt = step + 2 == STEPS
        return {"latents": 0.9 * given["latents"]}

    pipeline.set_progress_bar_config(file=written, mininterval=0, disable=False)
    images = pipeline(PROMPTS[0], generator=seeded(), callback_on_step_end=callback, output_type="pt", **SMALL).images
    shown = float(f"{STEPS - 1}/{STEPS}" in written.getvalue())
    return {"images": images, "steps": torch.tensor(steps), "progress": torch.tensor(shown)}


def from_an_image(pipeline: Any) -> Tensors:
    """Two pictures of each of three prompts, as PIL's."""
    other = diffusers.StableDiffusion3Img2ImgPipeline(**pipeline.components)
    other.set_progress_bar_config(disable=True)
    image = embeddings(5, 1, 3, 32, 48).sigmoid()
    pictures = other(
        PROMPTS, image=image, strength=0.7, generator=seeded(), num_images_per_prompt=2, **SMALL
    ).images  # fmt: skip
    return {"images": torch.stack([torch.tensor(np.asarray(each)) for each in pictures]).float()}


def as_arrays(pipeline: Any) -> Tensors:
    """With a generator for each picture."""
    generators = [torch.Generator().manual_seed(seed) for seed in range(3)]
    pipeline.set_progress_bar_config(disable=True)
    return {"images": torch.tensor(pipeline(PROMPTS, generator=generators, output_type="np", **SMALL).images)}


def offloaded(pipeline: Any) -> Tensors:
    """With hooks that replace `forward` and `to`, put back what they found, and move weights, as accelerate's do."""
    model = pipeline.transformer
    before = model.forward
    model.forward = functools.wraps(before)(lambda *args, **kwargs: before(*args, **kwargs))
    model.to = lambda *args, **kwargs: model
    as_arrays(pipeline)
    model.forward = before
    del model.to
    if vars(model).get("parallel_transformer"):
        model.to("meta")  # its weights stay where the plan keeps them
    return as_arrays(pipeline)


OWN_CALLS = {
    "callbacks": OwnCall(with_callbacks, ParallelPlan(pipefusion=2, patches=1)),
    "image to image": OwnCall(from_an_image, ParallelPlan(dp=2)),
    "arrays": OwnCall(as_arrays, ParallelPlan(ulysses=2)),
    "on the first rank": OwnCall(as_arrays, ParallelPlan(cfg=2), images="first"),
    "offloaded": OwnCall(offloaded, ParallelPlan(cfg=2, weights="host")),
    "with a shared VAE": OwnCall(as_arrays, ParallelPlan(dp=2), vae=True),
}
