"""Runs a diffusers scheduler for one request, with the same few calls whatever the scheduler's own signature is."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import torch

from ..errors import RequestError
from .schedulers import FLOW, kind_of

LMS_ORDER = 4
Level = tuple[float, float, float]  # alpha, sigma, scale: latents are alpha * x0 + sigma * noise, times scale as input


class Stepper:
    """A scheduler's run from its first model call to its last.

    Calls go in order: `initial`, then for each index `model_input`, the model, `step`. Latents and noise have any shape
    and are always whole. A patch uses a `copy` of the Stepper, and the caller takes the patch's region of its results.
    """

    def __init__(self, scheduler: Any, generator: torch.Generator | None = None, begin: int = 0) -> None:
        """scheduler: its timesteps are set, and no step is taken. It is not changed.
        generator: the source of noise; without one, a generator with a fixed seed.
        begin: the scheduler's timestep at which the run begins."""
        self.scheduler = copy.deepcopy(scheduler)
        self.generator = generator or torch.Generator()
        self.begin = begin
        count = len(scheduler.timesteps) - begin
        readable = on_cpu(scheduler)  # reading its numbers from a device would wait for each
        self.timesteps: list[float] = readable.timesteps[begin:].tolist()
        self.levels = [noise_level(readable, begin + index) for index in range(count)] + [(1.0, 0.0, 1.0)]
        self.takes = inspect.signature(scheduler.step).parameters
        self.previous_original: torch.Tensor | None = None
        if hasattr(self.scheduler, "set_begin_index"):
            self.scheduler.set_begin_index(begin)

    @classmethod
    def prepare(
        cls,
        scheduler: Any,
        steps: int,
        *,
        denoise: float = 1.0,
        linear_sigmas: bool = True,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> Stepper:
        """Prepares a run of `steps` steps, with timesteps set as diffusers' own pipelines set them.

        denoise: below 1, the last `steps` of int(steps / denoise) run, as KSamplers do.
        linear_sigmas: whether a flow-matching scheduler gets sigmas from 1 to 1 / steps, as from Flux's pipeline. Else
        it sets its own, as in SD3's.
        device: of the latents.
        Raises RequestError for numbers that the scheduler cannot take.
        """
        name = type(scheduler).__name__
        if steps < 1 or not 0 < denoise <= 1:
            raise RequestError(
                f"steps={steps}, denoise={denoise} does not work.",
                "Use at least one step, and a denoise above 0 and up to 1.",
            )
        total = steps if denoise > 0.9999 else int(steps / denoise)
        begin = (total - steps) * getattr(scheduler, "order", 1)
        scheduler = copy.deepcopy(scheduler)
        try:
            set_timesteps(scheduler, total, linear_sigmas, device)
        except (ValueError, AssertionError, KeyError) as error:
            raise RequestError(
                f"{name} cannot make {total} steps: {error}", "Use another number of steps, or another scheduler."
            ) from error
        return cls(scheduler, generator, begin)

    def __len__(self) -> int:
        return len(self.timesteps)

    def initial(self, noise: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
        """Returns the latents for call 0: noise alone for a full run, else `original` at that noise level."""
        if not self.begin:
            return noise.float() * getattr(self.scheduler, "init_noise_sigma", 1.0)
        return self.noised(original, noise, 0)

    def model_input(self, latents: torch.Tensor, index: int) -> torch.Tensor:
        """Returns the latents as the model takes them at call `index`. It is a new tensor, never `latents` itself."""
        scale = getattr(self.scheduler, "scale_model_input", None)
        scaled = scale(latents, self.scheduler.timesteps[self.begin + index]) if scale else latents
        return scaled.clone() if scaled is latents else scaled

    def step(self, prediction: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        """Returns the latents (float32) after call `index`, in which the model made `prediction` of `latents`."""
        prediction, latents, position = prediction.float(), latents.float(), self.begin + index
        times = self.scheduler.timesteps
        extra: dict[str, Any] = {"return_dict": False}
        if "generator" in self.takes:
            extra["generator"] = self.generator
        if "order" in self.takes:  # LMS counts its history from the schedule's start, wherever the run began
            extra["order"] = min(LMS_ORDER, index + 1)
        if "old_pred_original_sample" in self.takes:
            back = times[position - 1] if index else None
            stepped, self.previous_original = self.scheduler.step(
                prediction, self.previous_original, times[position], back, latents, **extra
            )
        else:
            stepped = self.scheduler.step(prediction, times[position], latents, **extra)[0]
        return stepped.float()

    def denoised(self, prediction: torch.Tensor, index: int, model_input: torch.Tensor) -> torch.Tensor:
        """Returns the clean latents that a prediction stands for, as a preview without clipping or the solver's
        history.

        model_input: what `model_input` returned at that index, in any shape. The formula is right for predictions of
        the noise, of v, of the clean latents, and of a flow's velocity.
        """
        alpha, sigma, scale = self.levels[index]
        model_input, prediction, kind = model_input.float(), prediction.float(), prediction_kind(self.scheduler)
        alpha, sigma = alpha * scale, sigma * scale
        if kind == "sample":
            return prediction
        if kind == "epsilon":
            return (model_input - sigma * prediction) / alpha
        if kind == FLOW:
            return model_input - sigma * prediction
        return alpha * model_input - sigma * prediction

    def noised(self, original: torch.Tensor, noise: torch.Tensor, index: int) -> torch.Tensor:
        """Returns `original` at the noise level of the latents that enter call `index`; unchanged after the last
        call."""
        alpha, sigma, _ = self.levels[index]
        if sigma == 0:
            return original.float().clone()
        return alpha * original.float() + sigma * noise.float()

    def copy(self) -> Stepper:
        """Returns another Stepper at the same point, with its own history and a generator that draws the same noise."""
        other = copy.copy(self)
        other.scheduler = copy.deepcopy(self.scheduler)
        other.generator = torch.Generator(self.generator.device)
        other.generator.set_state(self.generator.get_state())
        return other


def set_timesteps(scheduler: Any, steps: int, linear_sigmas: bool, device: torch.device | str) -> None:
    """Sets a scheduler's timesteps as diffusers' pipelines do."""
    arguments: dict[str, Any] = {"num_inference_steps": steps}
    if linear_sigmas and type(scheduler).__name__ == "FlowMatchEulerDiscreteScheduler":
        arguments = {"sigmas": np.linspace(1.0, 1 / steps, steps)}
    scheduler.set_timesteps(**arguments, device=device)


def prediction_kind(scheduler: Any) -> str:
    """Returns what the model predicts: epsilon, v_prediction, sample or flow matching."""
    kind = kind_of({**scheduler.config, "_class_name": type(scheduler).__name__})
    return FLOW if kind == FLOW else scheduler.config.get("prediction_type", "epsilon")


def on_cpu(scheduler: Any) -> Any:
    """Returns a copy of a scheduler with its tensors on the CPU."""
    copied = copy.copy(scheduler)
    for name, value in vars(scheduler).items():
        if isinstance(value, torch.Tensor):
            setattr(copied, name, value.cpu())
    return copied


def noise_level(scheduler: Any, position: int) -> Level:
    """Returns the noise level at one of a fresh scheduler's timesteps, from its own add_noise and scale_model_input."""
    probe = copy.copy(scheduler)
    if hasattr(probe, "set_begin_index"):
        probe.set_begin_index(position)
    times = probe.timesteps[position : position + 1]
    zero, one = torch.zeros(1, device=times.device), torch.ones(1, device=times.device)
    if hasattr(probe, "scale_noise"):
        alpha, sigma = probe.scale_noise(one, times, zero).item(), probe.scale_noise(zero, times, one).item()
    else:
        alpha, sigma = probe.add_noise(one, zero, times).item(), probe.add_noise(zero, one, times).item()
    scale = probe.scale_model_input(one, times[0]).item() if hasattr(probe, "scale_model_input") else 1.0
    return alpha, sigma, scale
