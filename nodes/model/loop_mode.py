"""Loop mode: the whole denoising loop of the Parallel Sampler runs in the worker group, as one request per job.

The request has the arguments that ComfyUI's own guider gives the diffusion model: the guider runs one forward, which is
recorded and not computed. So ComfyUI still encodes, batches and scales the conditions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import comfy.samplers
import torch
from comfy.model_base import BaseModel
from tqdm.auto import tqdm

from ...parallel_backend.sampling.passes import Pass
from ...worker.comfyui.call_keys import CONTROL, OPTIONS
from ...worker.host.call_batcher import CallRecorded
from ...worker.wire.protocol import Header
from ...worker.wire.sampler_call import SamplerCall
from ..assumptions import guides_by_scale
from ..errors import Refused
from ..inside.controls import add_control_facts, computes_here, record_for_all_steps, take_latents_from_steps
from .call_batching import AROUND_SAMPLING, batches_calls, list_wrappers
from .remote_module import RemoteModule, remote_module
from .sampling import Callback

Guider = comfy.samplers.CFGGuider

GUIDANCE_OPTIONS = {
    "sampler_cfg_function": "another guidance function",
    "sampler_pre_cfg_function": "a function before guidance",
    "sampler_post_cfg_function": "a function after guidance",
    "sampler_calc_cond_batch_function": "another way to batch conditions",
    "model_function_wrapper": "a wrapper of the model's function",
    "denoise_mask_function": "Differential Diffusion",
    "context_handler": "context windows",
}
REGIONAL_KEYS = {
    "area": "an area",
    "mask": "a mask",
    "start_percent": "a timestep range",
    "end_percent": "a timestep range",
    "gligen": "GLIGEN",
    "hooks": "hooks",
    "default": "default conditioning",
}


# The options that change at each step. A class that reads one of these raises.
STEP_OPTIONS = ("sigmas", "sample_sigmas")


class LoopSampler(comfy.samplers.Sampler):
    """A ComfyUI sampler that sends its call to the worker group."""

    needs_ranks = True

    def __init__(self, call: SamplerCall) -> None:
        """call: without the guidance scale, which the guider has."""
        self.call = call

    def sample(
        self,
        guider: Guider,
        sigmas: torch.Tensor,
        extra_args: dict[str, Any],
        callback: Callback | None,
        noise: torch.Tensor,
        latent_image: torch.Tensor | None = None,
        denoise_mask: torch.Tensor | None = None,
        disable_pbar: bool = False,
    ) -> torch.Tensor:
        """Returns the denoised latents in the model's own scale. Raises Refused for what the loop cannot honour."""
        call = replace(self.call, guidance=guider.cfg)
        asked = list_unsupported(guider, extra_args["model_options"])
        kind = type(guider.inner_model)
        if denoise_mask is not None and kind.scale_latent_inpaint is not BaseModel.scale_latent_inpaint:
            asked.append(f"a noise mask for {kind.__name__}, whose kept parts have no noise")
        if asked:
            raise cannot_honour(asked)
        given = {"noise": noise, "original": latent_image, "mask": denoise_mask}
        tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
        remote = require_remote_module(guider.inner_model)
        passes = record_passes(guider, remote, noise, sigmas, extra_args)
        bar = tqdm(disable=disable_pbar)
        latest = noise

        def on_step(event: Header, denoised: torch.Tensor | None) -> None:
            """Shows a step as ComfyUI's samplers do."""
            nonlocal latest
            if denoised is not None:
                latest = denoised.to(noise)
            bar.total = event["steps"]
            bar.update()
            if callback is not None:
                callback(event["step"], latest, latest, event["steps"])

        with bar:
            return remote.sample(call, tensors, passes, on_step).to(noise)


def cannot_honour(asked: list[str]) -> Refused:
    return Refused(
        f"The Parallel Sampler cannot honour {', '.join(asked)}: its loop runs in worker processes.",
        "Remove that node, or use a stock KSampler.",
    )


def require_remote_module(model: BaseModel) -> RemoteModule:
    """Returns the RemoteModule of a model in the worker group. Raises Refused if the model runs in ComfyUI."""
    found = remote_module(model)
    if found is None:
        raise Refused(
            "Parallel Sampler needs a MODEL that the ranks run, and this one runs in ComfyUI.",
            "Put Parallelize Model before it, or use a stock KSampler.",
        )
    return found


def record_passes(
    guider: Guider,
    remote: RemoteModule,
    noise: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: dict[str, Any],
) -> list[Pass]:
    """Records a step's cond and uncond forwards as the guider asks for them. Raises Refused for conditioning that
    changes the latents' size or the timesteps."""
    record_for_all_steps(guider.conds)
    first, options = sigmas[:1].expand(len(noise)), extra_args["model_options"]
    with remote.batcher.record() as calls:
        try:
            guider(noise, first, model_options=options, seed=extra_args["seed"])
        except CallRecorded as error:  # ComfyUI's `apply_model` would have caught it
            raise cannot_honour(["a change of apply_model"]) from error
    passes = []
    for (latents, timesteps), conditions, branches in calls:
        if isinstance(latents, (list, tuple)):
            raise Refused(
                "The Parallel Sampler takes no latent of several parts, such as video with sound.",
                "Use a stock KSampler for it.",
            )
        if latents.shape[2:] != noise.shape[2:]:
            raise Refused(
                f"The Parallel Sampler cannot pad latents of {format_size(noise)} to the {format_size(latents)} that "
                "the model takes.",
                "Choose sizes that are multiples of its patches, or use a stock KSampler.",
            )
        if timesteps.ndim != 1 or (timesteps != timesteps[0]).any():
            raise Refused(
                "The Parallel Sampler cannot honour conditioning that gives parts of a latent their own timesteps.",
                "Use a stock KSampler for it.",
            )
        options = {name: value for name, value in conditions[OPTIONS].items() if name not in STEP_OPTIONS}
        if CONTROL in conditions:  # ControlNets run in each step; they see all blocks, so the plan has no stages
            control = take_latents_from_steps(conditions[CONTROL], latents, timesteps)
            conditions, options = {**conditions, CONTROL: control}, add_control_facts(options)
        channels = latents[:, noise.shape[1] :]  # that the model gets besides the sampled ones
        extra = channels if channels.shape[1] else None
        passes.append(Pass(tuple(branches), {**conditions, OPTIONS: options}, extra))
    return passes


def format_size(latents: torch.Tensor) -> str:
    return "×".join(map(str, latents.shape[2:]))


def list_unsupported(guider: Guider, model_options: dict[str, Any]) -> list[str]:
    """Lists in words the parts of this call that a loop in the worker group cannot honour."""
    asked = []
    if type(guider) is not Guider:
        asked.append(f"the guider {type(guider).__name__}")
    if not guides_by_scale():
        asked.append("a change of ComfyUI's cfg_function")
    asked += [
        words
        for name, words in GUIDANCE_OPTIONS.items()
        if model_options.get(name) and not batches_calls(model_options[name])
    ]
    options = model_options.get("transformer_options", {})
    for key in ("patches", "patches_replace"):
        asked += [f"the model patch {name!r}" for name, functions in options.get(key, {}).items() if functions]
    asked += [f"the wrapper {name!r}" for name in list_wrappers(options.get("wrappers", {}), AROUND_SAMPLING)]
    others = {name: value for name, value in model_options.items() if name not in GUIDANCE_OPTIONS}
    asked += [f"the option {name!r}" for name, value in others.items() if callable(value)]  # of a newer ComfyUI
    for kind, conds in guider.conds.items():
        if len(conds) > 1:
            asked.append(f"{len(conds)} {kind} conditionings at once")
        if not conds and (kind == "positive" or not math.isclose(guider.cfg, 1.0)):
            asked.append(f"an empty {kind} conditioning")
        asked += list_regional(conds)
    return list(dict.fromkeys(asked))


def list_regional(conds: list[dict[str, Any]]) -> Iterator[str]:
    """Lists the options that restrict conditioning to a part of the image or of the steps."""
    for cond in conds:
        if computes_here(cond.get(CONTROL)):
            yield "a ControlNet that ComfyUI's device computes in each step"
        for key, words in REGIONAL_KEYS.items():
            if cond.get(key) is not None:
                yield f"conditioning with {words}"
        if not math.isclose(cond.get("strength", 1.0), 1.0):
            yield "conditioning with a strength"
