"""Loop mode: the whole denoising loop of a ComfyUI sampler runs in the worker group, one request a job.

What goes over is what ComfyUI's own guider hands to the diffusion model: it is asked for one forward, which is written
down and not run, so encoding, batching and scaling of the conditions stay the host's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import comfy.k_diffusion.sampling
import comfy.samplers
import torch
from comfy.model_base import BaseModel, ModelType
from comfy.patcher_extension import WrappersMP
from tqdm.auto import tqdm

from ...worker.wire.protocol import Header
from ...worker.wire.sampler_call import SamplerCall
from ...worker.wire.tensors import Tensors
from ..errors import Refused
from .remote_model import KEY, RemoteDiT

Guider = comfy.samplers.CFGGuider
Callback = Callable[[int, torch.Tensor, torch.Tensor, int], None]

# What ComfyUI's models predict, in diffusers' words, where Euler's step is the same in both.
PREDICTIONS = {
    ModelType.FLOW: "flow_prediction",
    ModelType.FLUX: "flow_prediction",
    ModelType.EPS: "epsilon",
    ModelType.V_PREDICTION: "v_prediction",
}
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
    "control": "a ControlNet",
    "gligen": "GLIGEN",
    "hooks": "hooks",
    "default": "default conditioning",
}


class LoopSampler(comfy.samplers.Sampler):
    """A ComfyUI sampler that sends its call to the worker group."""

    def __init__(self, call: Callable[[float], SamplerCall]) -> None:
        """call: the guidance scale to what to ask for."""
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
        """The denoised latents, in the model's own scale. Raises Refused for what the loop cannot honour."""
        asked = beyond_the_loop(guider, extra_args["model_options"])
        kind = type(guider.inner_model)
        if denoise_mask is not None and kind.scale_latent_inpaint is not BaseModel.scale_latent_inpaint:
            asked.append(f"a noise mask for {kind.__name__}, whose kept parts have no noise")
        if asked:
            raise Refused(
                f"The Parallel Sampler cannot honour {', '.join(asked)}: its loop runs in worker processes.",
                "Remove that node, or use a stock KSampler, with a plan without PipeFusion.",
            )
        tensors = {"noise": noise}
        if latent_image is not None:
            tensors["original"] = latent_image
        if denoise_mask is not None:
            tensors["mask"] = denoise_mask
        return run_loop(guider, self.call(guider.cfg), tensors, sigmas, extra_args, callback, disable_pbar)


def serve_stock_samplers(patcher: Any) -> None:
    """Has the worker group run the loop of those stock samplers whose result is the same; others are left alone."""
    patcher.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, KEY, serve_euler)


def serve_euler(executor: Any, guider: Guider, sigmas: torch.Tensor, extra_args: dict, *args: Any) -> torch.Tensor:
    """ComfyUI's `euler` by the worker group, if nothing in the call goes beyond it; else by ComfyUI."""
    callback, noise, latent_image, denoise_mask, disable_pbar = args
    model, sampler = guider.inner_model, executor.class_obj
    is_plain = (
        isinstance(model.diffusion_model, RemoteDiT)  # another node may have put a model of its own around it
        and isinstance(sampler, comfy.samplers.KSAMPLER)
        and sampler.sampler_function is comfy.k_diffusion.sampling.sample_euler
        and not sampler.extra_options
        and denoise_mask is None
        and len(sigmas) > 1
        and model.model_type in PREDICTIONS
        and model.diffusion_model.plan.patch_count == 1
        and model.diffusion_model.takes(noise)
        and not beyond_the_loop(guider, extra_args["model_options"])
    )
    if not is_plain:
        return executor(guider, sigmas, extra_args, *args)
    sampling = model.model_sampling
    latents = sampling.noise_scaling(sigmas[0], noise, latent_image, sampler.max_denoise(guider, sigmas))
    call = SamplerCall(
        guidance=guider.cfg,
        previews=callback is not None,
        sigmas=tuple(sigmas.tolist()),
        timesteps=tuple(float(sampling.timestep(sigma)) for sigma in sigmas[:-1]),
        prediction=PREDICTIONS[model.model_type],
    )
    latents = run_loop(guider, call, {"noise": latents}, sigmas, extra_args, callback, disable_pbar)
    return sampling.inverse_noise_scaling(sigmas[-1], latents)


def run_loop(
    guider: Guider,
    call: SamplerCall,
    tensors: Tensors,
    sigmas: torch.Tensor,
    extra_args: dict[str, Any],
    callback: Callback | None,
    disable_pbar: bool,
) -> torch.Tensor:
    """Sends the call, and shows its steps as ComfyUI's samplers do."""
    dit: RemoteDiT = guider.inner_model.diffusion_model
    noise = tensors["noise"]
    conditions, negative = record_conditions(guider, noise, sigmas, extra_args)
    bar = tqdm(disable=disable_pbar)
    latest = noise

    def on_step(event: Header, denoised: torch.Tensor | None) -> None:
        nonlocal latest
        if denoised is not None:
            latest = denoised.to(noise)
        bar.total = event["steps"]
        bar.update()
        if callback is not None:
            callback(event["step"], latest, latest, event["steps"])

    with bar:
        return dit.sample(call, tensors, conditions, negative, on_step).to(noise)


def record_conditions(
    guider: Guider, noise: torch.Tensor, sigmas: torch.Tensor, extra_args: dict[str, Any]
) -> tuple[Tensors, Tensors]:
    """The engine's conditions of cond and of uncond, as one forward of the guider brings them; the latter may be empty.

    Raises Refused for conditioning that changes the latents' channels.
    """
    dit: RemoteDiT = guider.inner_model.diffusion_model
    with dit.recording() as forwards:
        guider(noise, sigmas[:1].expand(len(noise)), model_options=extra_args["model_options"], seed=extra_args["seed"])
    branches: dict[int, Tensors] = {0: {}, 1: {}}
    for latents, conditions, indices in forwards:
        if latents.shape[1:] != noise.shape[1:]:
            raise Refused(
                f"The Parallel Sampler cannot fill up latents of {size_of(noise)} to the {size_of(latents)} that the "
                "model takes.",
                "Choose sizes that are multiples of its patches, or use a stock KSampler.",
            )
        for place, branch in enumerate(indices):
            branches[branch] = {name: value.chunk(len(indices))[place] for name, value in conditions.items()}
    return branches[0], branches[1]


def size_of(latents: torch.Tensor) -> str:
    return "×".join(map(str, latents.shape[2:]))


def beyond_the_loop(guider: Guider, model_options: dict[str, Any]) -> list[str]:
    """What of this call a loop in the worker group would have to drop, in words."""
    asked = []
    if type(guider) is not Guider:
        asked.append(f"the guider {type(guider).__name__}")
    asked += [words for name, words in GUIDANCE_OPTIONS.items() if model_options.get(name)]
    if "model_sampling" in guider.model_patcher.object_patches:
        asked.append("a ModelSampling node")
    for kind in (WrappersMP.PREDICT_NOISE, WrappersMP.CALC_COND_BATCH, WrappersMP.APPLY_MODEL):
        wrappers = model_options.get("transformer_options", {}).get("wrappers", {}).get(kind, {})
        asked += [f"the wrapper {name!r}" for name, functions in wrappers.items() if functions]
    for kind, conds in guider.conds.items():
        if len(conds) > 1:
            asked.append(f"{len(conds)} {kind} conditionings at once")
        asked += regional(conds)
    return list(dict.fromkeys(asked))


def regional(conds: list[dict[str, Any]]) -> Iterator[str]:
    """What makes conditioning apply to a part of the image or of the steps alone."""
    for cond in conds:
        for key, words in REGIONAL_KEYS.items():
            if cond.get(key) is not None:
                yield f"conditioning with {words}"
        if not math.isclose(cond.get("strength", 1.0), 1.0):
            yield "conditioning with a strength"
