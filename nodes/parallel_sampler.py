"""The node `Parallel Sampler` runs a whole sampler call on the worker group, with diffusers' schedulers and any
plan.
"""

from __future__ import annotations

from typing import Any

import comfy.sample
import comfy.utils
import latent_preview
import torch
from comfy_api.latest import io

from ..parallel_backend.sampling.schedulers import MODELS_OWN, SCHEDULERS
from ..worker.wire.sampler_call import SamplerCall
from .model.loop_mode import LoopSampler, require_remote_module
from .model.own_schedule import choose_schedule

MAX_SEED = 0xFFFFFFFFFFFFFFFF


class ParallelSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ParallelDiT_Sampler",
            display_name="Parallel Sampler",
            category="ParallelDiT",
            description="Denoises a latent in the worker group with a diffusers scheduler, under any plan.",
            search_aliases=["ParallelDiT", "KSampler", "PipeFusion", "xdit"],
            inputs=[
                io.Model.Input("model", tooltip="From Parallelize Model, or a node behind it."),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=MAX_SEED,
                    control_after_generate=True,
                    tooltip="The seed of the noise. A stock KSampler draws the same noise for it.",
                ),
                io.Int.Input("steps", default=20, min=1, max=10000, tooltip="Denoising steps."),
                io.Float.Input(
                    "cfg",
                    default=4.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    round=0.01,
                    tooltip="The weight of positive against negative. 1 leaves negative out.",
                ),
                io.Combo.Input(
                    "scheduler",
                    options=list(SCHEDULERS),
                    default=MODELS_OWN,
                    tooltip="A diffusers scheduler. model's own: Euler flow or DPM++ with ComfyUI's own shift or "
                    "betas, or the scheduler that a class-conditional DiT's folder names. Schedulers with flow in "
                    "their names are for flow matching (SD3, Flux, Wan and others). "
                    "CogVideoX ones are for CogVideoX, the rest for DiT, PixArt and HunyuanDiT.",
                ),
                io.Conditioning.Input("positive", tooltip="What the image should show."),
                io.Conditioning.Input("negative", tooltip="What the image should not show."),
                io.Latent.Input("latent_image", tooltip="The latent to denoise. Where its noise mask is 0, it stays."),
                io.Float.Input(
                    "denoise",
                    default=1.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Below 1, only the last steps run, and the latent's image shows through.",
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
        **_former: Any,  # a prompt may still link the former input vae
    ) -> io.NodeOutput:
        require_remote_module(model.model)
        schedule = choose_schedule(model)
        ratios = [latent_image.get(f"downscale_ratio_{kind}") for kind in ("spacial", "temporal")]
        samples = comfy.sample.fix_empty_latent_channels(model, latent_image["samples"], *ratios)
        output = {name: value for name, value in latent_image.items() if not name.startswith("downscale_ratio_")}
        if denoise == 0:
            return io.NodeOutput({**output, "samples": samples})
        call = SamplerCall(
            scheduler=scheduler,
            **schedule,
            steps=steps,
            denoise=denoise,
            guidance=cfg,
            seed=seed,
            previews=latent_preview.get_previewer(model.load_device, model.model.latent_format) is not None,
        )
        latent = {**latent_image, "samples": samples}
        latents = run_sampler(model, positive, negative, latent, LoopSampler(call))
        return io.NodeOutput({**output, "samples": latents})


def run_sampler(
    model: Any, positive: list, negative: list, latent: dict[str, Any], sampler: LoopSampler
) -> torch.Tensor:
    """Returns the denoised latents on ComfyUI's device and in its dtype."""
    samples, call = latent["samples"], sampler.call
    sigma_max = float(model.get_model_object("model_sampling").sigma_max)
    return comfy.sample.sample_custom(
        model,
        comfy.sample.prepare_noise(samples, call.seed, latent.get("batch_index")),
        call.guidance,
        sampler,
        torch.tensor([sigma_max, 0.0]),  # for the host's conditioning only: diffusers sets the schedule
        positive,
        negative,
        samples,
        noise_mask=latent.get("noise_mask"),
        callback=latent_preview.prepare_callback(model, call.steps),
        disable_pbar=not comfy.utils.PROGRESS_BAR_ENABLED,
        seed=call.seed,
    )
