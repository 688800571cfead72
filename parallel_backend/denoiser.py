"""The denoising loop on a mesh: a diffusers scheduler around a parallel transformer, with or without PipeFusion.

PipeFusion (https://arxiv.org/abs/2405.14430): the first steps run whole and fill every stage's keys and values; after
them, each step runs patch by patch, a patch attending to its own fresh keys and to the stale ones of the patches that
are yet to come. What comes out depends on the number of patches, not on the number of stages.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from .attention import StaleCache
from .collectives import shard_sizes
from .errors import RequestError
from .stages import Message
from .transformer import Conditions, ParallelTransformer


class Denoiser:
    """Samples with a parallel transformer. Holds no state between calls."""

    def __init__(self, transformer: ParallelTransformer) -> None:
        self.transformer = transformer
        self.plan = transformer.mesh.plan

    @torch.inference_mode()
    def sample(
        self,
        latents: torch.Tensor,
        scheduler: Any,
        conditions: Conditions,
        negative: Conditions | None = None,
        guidance: float = 1.0,
    ) -> torch.Tensor | None:
        """Denoises `latents`; the result is on the ranks of the last stage, and None elsewhere.

        latents: noise at the scheduler's first timestep, (B, C, H, W) or (B, C, F, H, W).
        scheduler: a diffusers scheduler whose timesteps are set; it is not changed.
        negative: the unconditional branch of classifier-free guidance, whose weight is `guidance`.
        Raises RequestError, on every rank alike, for input that the model cannot take.
        """
        run = _Run(self.transformer, latents, scheduler, conditions, negative, guidance)
        sync_steps = min(self.plan.sync_steps, run.steps) if self.plan.patch_count > 1 else run.steps
        try:
            for step in range(sync_steps):
                run.whole_step(step)
            if sync_steps < run.steps:
                run.split_scheduler()
            for step in range(sync_steps, run.steps):
                for patch in range(self.plan.patch_count):
                    run.patch_step(step, patch, first=step == sync_steps)
            run.finish()
        finally:
            run.release()
        return run.latents if run.is_last else None


class _Run:
    """One call of `sample`: its latents, scheduler copies, stale keys and values. Ends with the request."""

    def __init__(
        self,
        transformer: ParallelTransformer,
        latents: torch.Tensor,
        scheduler: Any,
        conditions: Conditions,
        negative: Conditions | None,
        guidance: float,
    ) -> None:
        self.transformer, self.guidance = transformer, guidance
        self.layout, self.link = transformer.layout, transformer.link
        self.plan = transformer.mesh.plan
        self.is_first, self.is_last = (self.link.is_first, self.link.is_last) if self.link else (True, True)
        self.branches = 2 if negative is not None else 1
        self.conditions = conditions
        if negative is not None:
            self.conditions = {name: torch.cat([value, negative[name]]) for name, value in conditions.items()}
        self.schedulers = [copy.deepcopy(scheduler)]
        self.timesteps = self.schedulers[0].timesteps.tolist()
        self.steps = len(self.timesteps)
        self.latents = latents.to(transformer.mesh.device, torch.float32)
        self.inputs = model_input(self.schedulers[0], self.latents, self.timestep(0))
        self.regions = patch_regions(transformer, latents)
        transformer.check(*self.model_arguments(0))
        if self.plan.patch_count > 1:
            transformer.attention.cache = StaleCache()
        if self.link:
            self.link.expect(self.messages())

    def messages(self) -> list[Message]:
        """What this stage gets from the one before: tokens of every forward, or the latents after it."""
        patches = list(range(self.plan.patch_count))
        whole = self.steps if self.plan.patch_count == 1 else min(self.plan.sync_steps, self.steps)
        forwards = [(step, patches) for step in range(whole)]
        forwards += [(step, [patch]) for step in range(whole, self.steps) for patch in patches]
        if not self.is_first:
            return forwards
        # The first step's latents are here. The first patch-wise step's come as a whole, from the last whole one.
        return [(step, patches) for step in range(1, min(whole + 1, self.steps))] + [
            (step, [patch]) for step in range(whole + 1, self.steps) for patch in patches
        ]

    def receive_latents(self, segments: list[int]) -> None:
        """On the first stage, takes the segments' latents for the next forward from the last stage."""
        if len(segments) == self.plan.patch_count:
            self.inputs = self.link.receive_latents(segments, self.empty_latents)
        else:
            self.inputs[..., self.regions[segments[0]]] = self.link.receive_latents(segments, self.empty_latents)

    def empty_latents(self, segments: list[int]) -> torch.Tensor:
        """Of the whole image, (B, C, …), or of one patch's pixels, (B, C, pixels)."""
        if len(segments) == self.plan.patch_count:
            return torch.empty_like(self.inputs)
        return self.inputs.new_empty(*self.inputs.shape[:2], int(self.regions[segments[0]].sum()))

    def timestep(self, step: int) -> torch.Tensor:
        return self.schedulers[0].timesteps[step]

    def model_arguments(self, step: int) -> tuple[torch.Tensor, torch.Tensor, Conditions]:
        """Every branch's rows: the model's input, its timesteps, and its conditions."""
        rows = torch.cat([self.inputs] * self.branches)
        timestep = self.timesteps[step] * self.transformer.spec.timestep_scale
        return rows, torch.full((len(rows),), timestep), self.conditions

    def predict(self, step: int, segments: list[int]) -> torch.Tensor | None:
        """The guided prediction, of the segments given, on the last stage."""
        self.layout.running = segments
        prediction = self.transformer.predict(*self.model_arguments(step))
        if prediction is None or self.branches == 1:
            return prediction
        cond, uncond = prediction.float().chunk(2)
        return uncond + self.guidance * (cond - uncond)

    def whole_step(self, step: int) -> None:
        """A step over the whole image, by every stage in turn."""
        if self.link and self.is_first and step:
            self.receive_latents(list(range(self.plan.patch_count)))
        prediction = self.predict(step, list(range(self.plan.patch_count)))
        if prediction is None:
            return
        self.latents = advance(self.schedulers[0], prediction, self.timestep(step), self.latents)
        if step + 1 < self.steps:
            self.inputs = model_input(self.schedulers[0], self.latents, self.timestep(step + 1))
            if self.link:
                self.link.send_latents(self.inputs)

    def split_scheduler(self) -> None:
        """Gives each patch a scheduler of its own, so that a multistep history is the patch's."""
        self.schedulers = [copy.deepcopy(self.schedulers[0]) for _ in self.regions]

    def patch_step(self, step: int, patch: int, first: bool) -> None:
        """A step of one patch. first: the step that follows the whole ones, whose input came over as a whole."""
        region, scheduler = self.regions[patch], self.schedulers[patch]
        if self.link and self.is_first and not first:
            self.receive_latents([patch])
        elif self.link and self.is_first and patch == 0:
            self.receive_latents(list(range(self.plan.patch_count)))
        prediction = self.predict(step, [patch])
        if prediction is None:
            return
        stepped = advance(scheduler, prediction, self.timestep(step), self.latents)
        self.latents[..., region] = stepped[..., region]
        if step + 1 < self.steps:
            scaled = model_input(scheduler, self.latents, self.timestep(step + 1))[..., region]
            self.inputs[..., region] = scaled
            if self.link:
                self.link.send_latents(scaled)

    def finish(self) -> None:
        if self.link:
            self.link.finish()

    def release(self) -> None:
        """Drops the request's state; the next request finds none of it."""
        self.transformer.attention.cache = None
        self.transformer.forget()
        self.layout.running = list(range(self.plan.patch_count))


def model_input(scheduler: Any, latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    """The latents as the model takes them at a timestep; flow-matching schedulers leave them as they are."""
    scale = getattr(scheduler, "scale_model_input", None)
    scaled = scale(latents, timestep) if scale else latents
    return scaled.clone() if scaled is latents else scaled


def advance(scheduler: Any, prediction: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    """One step of a diffusers scheduler."""
    return scheduler.step(prediction.float(), timestep, latents, return_dict=False)[0]


def patch_regions(transformer: ParallelTransformer, latents: torch.Tensor) -> list[torch.Tensor]:
    """The latent pixels of each patch, as masks over the latents' last dims: patches are ranges of tokens."""
    _, patch = transformer.spec.geometry(transformer.model.config)
    grid = [size // side for size, side in zip(latents.shape[2:], patch, strict=True)]
    tokens, patches = math.prod(grid), transformer.mesh.plan.patch_count
    if patches > tokens:
        raise RequestError(f"The image has {tokens} tokens and cannot fall into {patches} patches; use fewer.")
    owner = torch.arange(patches).repeat_interleave(torch.tensor(shard_sizes(tokens, patches))).reshape(grid)
    for dim, side in enumerate(patch):
        owner = owner.repeat_interleave(side, dim)
    return [(owner == index).to(transformer.mesh.device) for index in range(patches)]
