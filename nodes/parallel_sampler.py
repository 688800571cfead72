"""The node `Parallel Sampler`: a whole sampler call on the worker group, with diffusers' schedulers and any plan."""

from __future__ import annotations

from typing import Any

import comfy.model_management
import comfy.sample
import comfy.samplers
import comfy.utils
import latent_preview
import torch
from comfy_api.latest import io

from ..parallel_backend.sampling.schedulers import MODELS_OWN, SCHEDULERS
from ..worker.wire.sampler_call import SamplerCall
from .model.loop_mode import LoopSampler, stand_in
from .model.own_schedule import own_schedule
from .model.remote_module import RemoteModule

MAX_SEED = 0xFFFFFFFFFFFFFFFF


class ParallelSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ParallelDiT_Sampler",
            display_name="Parallel Sampler",
            category="model/parallel",
            description="Denoises a latent in the worker group with a diffusers scheduler, under any plan.",
            search_aliases=["ParallelDiT", "KSampler", "PipeFusion", "xdit"],
            inputs=[
                io.Model.Input("model", tooltip="From Load Diffusion Model (Parallel)."),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=MAX_SEED,
                    control_after_generate=True,
                    tooltip="Of the noise, which is the same as a stock KSampler's for the same seed.",
                ),
                io.Int.Input("steps", default=20, min=1, max=10000, tooltip="Denoising steps."),
                io.Float.Input(
                    "cfg",
                    default=4.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    round=0.01,
                    tooltip="The weight of positive against negative; 1 leaves negative out.",
                ),
                io.Combo.Input(
                    "scheduler",
                    options=list(SCHEDULERS),
                    default=MODELS_OWN,
                    tooltip="A diffusers scheduler, with the settings in the model's folder. model's own: the one that "
                    "the folder names; of a file, Euler flow or DPM++ with ComfyUI's own shift or betas. Those with "
                    "flow in their names are for flow matching (SD3, Flux, Wan and others), CogVideoX ones for "
                    "CogVideoX, the rest for DiT, PixArt and HunyuanDiT.",
                ),
                io.Conditioning.Input("positive", tooltip="What the image shall show."),
                io.Conditioning.Input("negative", tooltip="What it shall not."),
                io.Latent.Input("latent_image", tooltip="The latent to denoise. Where its noise mask is 0, it stays."),
                io.Float.Input(
                    "denoise",
                    default=1.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Below 1, the latent's image shows through: only the last steps run.",
                ),
            ],
            outputs=[io.Latent.Output(tooltip="The denoised latent.")],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        seed: int,
        steps: int,
        cfg: float,
        scheduler: str,
        positive: list,
        negative: list,
        latent_image: dict[str, Any],
        denoise: float,
    ) -> io.NodeOutput:
        remote = stand_in(model.model)
        schedule, scale = own_schedule(model) if isinstance(remote, RemoteModule) else (remote.schedule, 1.0)
        ratios = [latent_image.get(f"downscale_ratio_{kind}") for kind in ("spacial", "temporal")]
        samples = comfy.sample.fix_empty_latent_channels(model, latent_image["samples"], *ratios)
        output = {name: value for name, value in latent_image.items() if not name.startswith("downscale_ratio_")}
        if denoise == 0:
            return io.NodeOutput({**output, "samples": samples})
        previewer = latent_preview.get_previewer(model.load_device, model.model.latent_format)

        def call(guidance: float) -> SamplerCall:
            return SamplerCall(
                scheduler=scheduler,
                config=schedule.config,
                default=schedule.default,
                linear_sigmas=schedule.linear_sigmas,
                timestep_scale=scale,
                steps=steps,
                denoise=denoise,
                guidance=guidance,
                seed=seed,
                previews=previewer is not None,
            )

        guider = comfy.samplers.CFGGuider(model)
        guider.set_conds(positive, negative)
        guider.set_cfg(cfg)
        noise = comfy.sample.prepare_noise(samples, seed, latent_image.get("batch_index"))
        sigma_max = float(model.get_model_object("model_sampling").sigma_max)
        denoised = guider.sample(
            noise,
            samples,
            LoopSampler(call),
            torch.tensor([sigma_max, 0.0]),  # the schedule is diffusers'; these are for the host's conditioning alone
            denoise_mask=latent_image.get("noise_mask"),
            callback=latent_preview.prepare_callback(model, steps),
            disable_pbar=not comfy.utils.PROGRESS_BAR_ENABLED,
            seed=seed,
        )
        device, dtype = comfy.model_management.intermediate_device(), comfy.model_management.intermediate_dtype()
        return io.NodeOutput({**output, "samples": denoised.to(device=device, dtype=dtype)})
