"""The denoising loop on a mesh: a diffusers scheduler around a parallel model, with or without PipeFusion.

PipeFusion (https://arxiv.org/abs/2405.14430): the first steps run whole and fill every stage's keys and values. After
them, each step runs patch by patch. A patch attends to its own fresh keys, and to the stale keys of the patches still
to come. The result depends on the number of patches, not on the number of stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..compat import list_tensors
from ..device import is_accelerator
from ..groups.collectives import gather
from ..parallel_model import ParallelModel
from ..seams.exchange.differences import Differences
from ..seams.forward import Forward, StaleCache
from ..seams.pipeline.regions import part_of, patch_regions, put_part, token_grid
from ..seams.pipeline.stages import StageLink, StageMessage
from .passes import Pass
from .schedulers import check_patchwise
from .stepper import Stepper

BATCH_DIM, CHANNEL_DIM = 0, 1
SERIAL_STEPS = 2  # with the whole step before them, as many as the history of a scheduler has


class LoopStopped(Exception):
    """The watch ended the run between two steps, on every rank alike."""


class Watch:
    """Follows a run, and may end it. This one does neither.

    previews: whether `stepped` needs the estimate of the clean latents; the same on every rank.
    """

    previews = False

    def proceed(self, step: int) -> bool:
        """Whether this step runs. Asked once per step, in order. Every rank must give the same answer."""
        return True

    def stepped(self, step: int, timestep: float, denoised: torch.Tensor | None) -> None:
        """Called after a step on the ranks of the first stage. denoised: in the shape of the latents, if known."""


@dataclass(frozen=True)
class Inpainting:
    """Keeps the original where the mask is 0. After every step, it puts the original back, with the step's noise level.
    mask: from 0 to 1, broadcast to the latents. original, noise: in the shape of the latents."""

    mask: torch.Tensor
    original: torch.Tensor
    noise: torch.Tensor


def denoise(
    model: ParallelModel,
    latents: torch.Tensor,
    stepper: Stepper,
    passes: Sequence[Pass],
    guidance: float,
    *,
    timestep_scale: float,
    inpainting: Inpainting | None = None,
    watch: Watch | None = None,
) -> torch.Tensor | None:
    """Denoises `latents` with the forwards of each step. The result is on the ranks of the first stage; other ranks get
    None.

    latents: noise at the stepper's first timestep, (B, C, H, W) or (B, C, F, H, W). stepper: is used up. guidance: the
    weight of classifier-free guidance. timestep_scale: the model takes a scheduler's timestep times this. Raises
    LoopStopped. Raises RequestError, on every rank alike, for input that the model cannot take.
    """
    with torch.inference_mode(), model.compiling(len(stepper.timesteps)):
        run = _Run(model, latents, stepper, passes, guidance, timestep_scale, inpainting, watch or Watch())
        timeline = model.mesh.timeline
        try:
            for step in range(run.steps):
                with timeline.step(f"step {step + 1}"):
                    if not run.watch.proceed(step):
                        run.stop(step)
                    run.step(step)
            return run.finish()
        finally:
            model.forget()  # so that the next request finds nothing of this one
            run.link = None  # which has a function of the run


@dataclass(eq=False)
class _Run:
    """One call of `denoise`: its latents, scheduler copies, stale keys and values. It ends with the request."""

    model: ParallelModel
    latents: torch.Tensor
    stepper: Stepper
    passes: Sequence[Pass]
    guidance: float
    timestep_scale: float
    inpainting: Inpainting | None
    watch: Watch

    def __post_init__(self) -> None:
        model, stepper, latents, inpainting = self.model, self.stepper, self.latents, self.inpainting
        self.link = model.link
        self.plan = model.mesh.plan
        self.is_first = self.link is None or self.link.is_first
        self.patches = list(range(self.plan.patch_count))
        self.branches = [branch for each in self.passes for branch in each.branches]
        cfg = model.mesh["cfg"]
        self.splits_passes = len(self.passes) == cfg.degree > 1  # each cfg group runs a branch with its own shape
        self.own_passes = [cfg.index] if self.splits_passes else list(range(len(self.passes)))
        self.patch_steppers: list[Stepper] = []
        self.steps = len(stepper.timesteps)
        if self.plan.patch_count > 1:
            check_patchwise(stepper.scheduler)
        self.whole_steps = min(self.plan.sync_steps, self.steps) if self.plan.patch_count > 1 else self.steps
        device = model.mesh.device
        self.latents = latents.to(device, torch.float32)
        self.inpainting = inpainting and Inpainting(
            *(part.to(device, torch.float32) for part in (inpainting.mask, inpainting.original, inpainting.noise))
        )
        self.inputs = stepper.model_input(self.latents, 0)
        self.denoised = torch.zeros_like(self.latents) if self.watch.previews else None
        self.tokens, self.regions = 0, list[torch.Tensor]()
        if len(self.patches) > 1:
            self.tokens = math.prod(token_grid(latents, model.patch_size(latents)))
            self.regions = patch_regions(latents, model.patch_size(latents), len(self.patches), device)
        self.caches = [StaleCache() if self.plan.patch_count > 1 else None for _ in self.passes]
        self.differences = [Differences() if self.plan.keeps_differences else None for _ in self.passes]
        self.serial_steps = range(0)
        if self.link:
            self.link.expect(self.messages(), None if self.is_first else self.watch.proceed, self.own_passes[-1])
            self.serial_steps = self.choose_serial_steps(self.link)

    def choose_serial_steps(self, link: StageLink) -> range:
        """Returns the steps in which one patch at a time goes through all stages: on a GPU, the first ones with patches
        of these shapes. They load kernels, see `StageLink`."""
        shapes = [each.shape for each in list_tensors([(each.kwargs, each.channels) for each in self.passes])]
        compiles = self.plan.compiles(len(self.stepper)), repr(self.model.options.compile)  # the same on all ranks
        self.kind = self.inputs.shape, type(self.stepper.scheduler), *compiles, *shapes
        is_new = is_accelerator(self.inputs.device) and self.kind not in link.loaded
        return range(self.whole_steps, self.whole_steps + SERIAL_STEPS * is_new)

    def messages(self) -> list[StageMessage]:
        """Lists what this stage receives from the one before: tokens of every forward, or the latents of every step."""
        forwards = [(step, patches) for step in range(self.steps) for patches in self.parts(step)]
        indices = [0] if self.is_first else self.own_passes
        return [StageMessage(*forward, index) for forward in forwards for index in indices]

    def parts(self, step: int) -> list[list[int]]:
        """Returns the patches that run together in a step: all of them, or each patch alone."""
        return [self.patches] if step < self.whole_steps else [[patch] for patch in self.patches]

    def predict(self, step: int, patches: list[int]) -> torch.Tensor | None:
        """Returns the guided prediction for these patches, on the last stage."""
        mesh, predictions = self.model.mesh, []
        axis = mesh["dp" if self.splits_passes else "batch"]
        timestep = self.stepper.timesteps[step] * self.timestep_scale
        for index in self.own_passes:
            branches, kwargs, channels = self.passes[index]
            latents = torch.cat([self.inputs] * len(branches)).to(self.model.dtype)
            rows = latents if channels is None else torch.cat([latents, channels.to(latents)], CHANNEL_DIM)
            timestep_B = torch.full((len(rows),), timestep, device=rows.device)
            forward = Forward(patches, self.caches[index], step, index, self.tokens, self.differences[index])
            own = self.model.run_rows((rows, timestep_B), kwargs, len(rows), axis, forward)
            if not self.link or self.link.is_last:
                predictions.append(gather(latents[:0] if own is None else own, BATCH_DIM, len(rows), axis))
        if not predictions or len(self.branches) == 1:
            return next(iter(predictions), None)
        prediction = torch.cat(predictions)
        if self.splits_passes:
            prediction = gather(prediction, BATCH_DIM, 2 * len(prediction), mesh["cfg"].evenly)
        parts = prediction.float().chunk(2)
        cond, uncond = (parts[self.branches.index(branch)] for branch in (0, 1))
        return uncond + self.guidance * (cond - uncond)

    def step(self, step: int) -> None:
        """Runs one step, over the whole image or patch by patch."""
        if self.link:
            self.link.receives_ahead = step not in self.serial_steps
        if step < self.whole_steps:
            self.advance(step, self.patches, self.stepper)
            return
        if not self.patch_steppers:  # each patch has its own from here on, with its own multistep history
            self.patch_steppers = [self.stepper.copy() for _ in self.patches]
        for patch in self.patches:
            self.advance(step, [patch], self.patch_steppers[patch])

    def advance(self, step: int, patches: list[int], stepper: Stepper) -> None:
        """Moves the patches' latents to the next step, on the last stage. Other stages run their part of the model."""
        if self.link and self.is_first and step:
            self.receive_latents(self.link, step - 1, patches)
        prediction = self.predict(step, patches)
        if prediction is None:
            if self.link and self.is_first and step in self.serial_steps:
                self.take_latents(self.link, step, patches)
            return
        region = self.region(patches)
        latents = stepper.step(prediction, step, self.latents)
        if self.inpainting:
            mask, known = self.inpainting.mask, self.inpainting
            latents = mask * latents + (1 - mask) * stepper.noised(known.original, known.noise, step + 1)
        denoised = None
        if self.watch.previews:
            denoised = part_of(stepper.denoised(prediction, step, self.inputs), region)
        if region is None:
            self.latents = latents.contiguous()
        else:  # a new tensor each time, because schedulers with a history keep the last one
            self.latents = self.latents.clone(memory_format=torch.contiguous_format)
            put_part(self.latents, region, part_of(latents, region))
        following = latents if step + 1 == self.steps else stepper.model_input(self.latents, step + 1)
        put_part(self.inputs, region, part_of(following, region))
        if not self.link:
            self.note(step, patches, denoised)
        else:
            values = [part_of(self.inputs, region), *(() if denoised is None else (denoised,))]
            self.link.send_latents(values, step, patches)

    def receive_latents(self, link: StageLink, step: int, patches: list[int]) -> None:
        """Receives, on the first stage, the patches that the last stage made in a step, if they have not come yet."""
        if step < self.whole_steps:
            if not patches[0]:  # the others come with the first patch
                self.take_latents(link, step, self.patches)
        elif step not in self.serial_steps:
            self.take_latents(link, step, patches)

    def take_latents(self, link: StageLink, step: int, patches: list[int]) -> None:
        """Receives these patches."""
        rows = len(self.inputs)

        def shape_of(message: StageMessage) -> Sequence[int]:
            region = self.region(message.patches)
            shape = self.inputs.shape[1:] if region is None else (self.inputs.shape[1], len(region))
            return rows * (2 if self.watch.previews else 1), *shape

        arrived = link.take(StageMessage(step, patches), shape_of, self.inputs)
        put_part(self.inputs, self.region(patches), arrived[:rows])
        self.note(step, patches, arrived[rows:] if self.watch.previews else None)

    def region(self, patches: list[int]) -> torch.Tensor | None:
        """Returns where the pixels of these patches are in the latents, see `patch_regions`; None for all."""
        return None if len(patches) == len(self.patches) else self.regions[patches[0]]

    def note(self, step: int, patches: list[int], denoised: torch.Tensor | None) -> None:
        """Reports a step to the watch once its last patch is there."""
        if denoised is not None and self.denoised is not None:
            put_part(self.denoised, self.region(patches), denoised)
        if patches[-1] == self.patches[-1]:
            self.watch.stepped(step, self.stepper.timesteps[step], self.denoised)

    def stop(self, step: int) -> None:
        """Leaves the run before a step, with no message under way. Raises LoopStopped."""
        if self.link:
            self.link.expect_nothing_after(step - 1)
            self.await_messages(self.link, step)
        raise LoopStopped

    def finish(self) -> torch.Tensor | None:
        """Returns the result on the ranks that return it."""
        if self.link:
            self.await_messages(self.link, self.steps)
            if self.steps >= self.serial_steps.stop:
                self.link.loaded.add(self.kind)
        return self.inputs if self.is_first else None

    def await_messages(self, link: StageLink, steps: int) -> None:
        """Receives the latents of the last of so many steps on the first stage, and waits for what this stage sent."""
        if self.is_first and steps:
            for patches in self.parts(steps - 1):
                self.receive_latents(link, steps - 1, patches)
        link.finish()
