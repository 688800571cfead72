"""diffusers' own pipelines of every class, called for two steps: what the engine's loop must give, and pass on.

The pipelines are called with embeddings, without guidance, and give latents.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import diffusers
import torch

from tests.support.cases.families import FAMILIES, Tensors

STEPS = 2
SIDE = 128  # pixels, of 16 latent pixels where there is no VAE to say so
FLOW = diffusers.FlowMatchEulerDiscreteScheduler
Latents = Callable[[torch.Tensor], torch.Tensor]


class Part(torch.nn.Module):
    """Stands for a part of a pipeline that does nothing here."""

    dtype, device = torch.float32, torch.device("cpu")


class Vae(Part):
    """What pipelines ask of one beside its work. It encodes any image as the same latents."""

    spatial_compression_ratio, temporal_compression_ratio = 8, 4
    temperal_downsample = (False, True, True)

    def __init__(self) -> None:
        super().__init__()
        sizes = {"block_out_channels": (1,) * 4, "temporal_compression_ratio": 4, "latent_channels": 4}
        scales = {"scaling_factor": 1.0, "shift_factor": 0.0, "latents_mean": [0.0], "latents_std": [1.0], "z_dim": 1}
        self.config = SimpleNamespace(**sizes, **scales)
        self.decoded = torch.zeros(0)

    def encode(self, _image: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(latents=image_latents())

    def decode(self, latents: torch.Tensor) -> SimpleNamespace:
        self.decoded = latents
        return SimpleNamespace(sample=latents)


def image_latents() -> torch.Tensor:
    """Of one frame, (1, C, 1, H, W)."""
    return torch.linspace(-1, 1, 256).reshape(1, 4, 1, 8, 8)


class Processor:
    """In place of OmniGen's: the conditions, and what guidance by 1 leaves out."""

    max_image_size = 1024

    def __init__(self, conditions: Tensors) -> None:
        self.rows = {name: torch.cat([value, value]) for name, value in conditions.items()}

    def __call__(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {**self.rows, "input_pixel_values": [], "input_image_sizes": {}}


def unchanged(latents: torch.Tensor) -> torch.Tensor:
    return latents


@dataclass(frozen=True)
class Loop:
    """A pipeline's call.

    pipeline: the name of its class, with its module if diffusers does not export it here. size: of the latents, (H, W)
    or (F, H, W), that its arguments ask for. arguments: of the call, by the family's conditions. conditions: what the
    family has in another form. given, taken: from the engine's latents to the pipeline's, and back. has_vae: it needs
    one. draws: the module in which it draws its noise, if it takes none; then its latents are what it decodes. ready:
    gives the pipeline what stands for its other parts, from the conditions.
    """

    family: str
    pipeline: str
    arguments: Callable[[Tensors], dict[str, Any]]
    size: tuple[int, ...] = (16, 16)
    scheduler: Callable[[], Any] = FLOW
    conditions: Callable[[Tensors], Tensors] = lambda conditions: conditions
    given: Latents = unchanged
    taken: Latents = unchanged
    has_vae: bool = False
    draws: str = ""
    ready: Callable[[Any, Tensors], None] = lambda _pipeline, _conditions: None

    def build(self) -> diffusers.DiffusionPipeline:
        module, _, name = self.pipeline.rpartition(".")
        pipeline_class = getattr(importlib.import_module(f"diffusers.{module}") if module else diffusers, name)
        absent = dict.fromkeys(pipeline_class._get_signature_types())
        absent.update({"safety_checker": Part()} if "safety_checker" in absent and self.has_vae else {})
        parts = {"transformer": FAMILIES[self.family].build(), "scheduler": self.scheduler()}
        pipeline = pipeline_class(**{**absent, **parts, **({"vae": Vae()} if self.has_vae else {})})
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def inputs(self) -> tuple[torch.Tensor, Tensors]:
        """Noise and conditions of one row."""
        noise, _, conditions = FAMILIES[self.family].inputs(1, *self.size)
        return noise, self.conditions(conditions)

    def run(self, pipeline: diffusers.DiffusionPipeline, noise: torch.Tensor, conditions: Tensors) -> torch.Tensor:
        """The pipeline's latents, in the engine's form."""
        self.ready(pipeline, conditions)
        call = partial(pipeline, **self.arguments(conditions), num_inference_steps=STEPS, return_dict=False)
        if not self.draws:
            return self.taken(call(latents=self.given(noise.clone()))[0].detach())
        with patch(f"diffusers.{self.draws}.randn_tensor", lambda *_, **__: noise):
            call()
        return pipeline.vae.decoded[:1]


def text(conditions: Tensors, **others: Any) -> dict[str, Any]:
    """The arguments of most pipelines."""
    arguments = {"prompt_embeds": conditions["encoder_hidden_states"], "output_type": "latent"}
    return {**arguments, "height": SIDE, "width": SIDE, "guidance_scale": 1.0, **others}


def video(conditions: Tensors, **others: Any) -> dict[str, Any]:
    return text(conditions, **{"height": 64, "width": 64, "num_frames": 9, **others})


def packed(name: str) -> tuple[Latents, Latents]:
    """How a pipeline packs latents, and unpacks them. It is imported when it does: that takes a second."""

    def pipeline() -> Any:
        return getattr(diffusers, name)

    def pack(latents: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = latents.shape
        return pipeline()._pack_latents(latents, batch, channels, height, width)

    return pack, lambda tokens: pipeline()._unpack_latents(tokens, SIDE, SIDE, 8)


def frames_first(latents: torch.Tensor) -> torch.Tensor:
    return latents.transpose(1, 2)


def without(conditions: Tensors, *names: str) -> Tensors:
    return {name: value for name, value in conditions.items() if name not in names}


def mask(conditions: Tensors) -> torch.Tensor:
    """That all text counts."""
    return torch.ones(conditions["encoder_hidden_states"].shape[:2], dtype=torch.long)


def flux_like(family: str, name: str, arguments: Callable[[Tensors], dict[str, Any]], **others: Any) -> Loop:
    pack, unpack = packed("FluxPipeline")
    return Loop(family, name, arguments, given=pack, taken=unpack, **others)


LOOPS = [
    Loop(
        "dit",
        "DiTPipeline",
        lambda given: {"class_labels": given["class_labels"].tolist(), "guidance_scale": 1.0},
        scheduler=diffusers.DDIMScheduler,
        has_vae=True,
        draws="pipelines.dit.pipeline_dit",
    ),
    Loop(
        "pixart-sigma",
        "PixArtSigmaPipeline",
        lambda given: text(
            given, prompt_attention_mask=mask(given), negative_prompt=None, use_resolution_binning=False
        ),
        scheduler=diffusers.DDIMScheduler,
    ),
    Loop(
        "sd3.5", "StableDiffusion3Pipeline", lambda given: text(given, pooled_prompt_embeds=given["pooled_projections"])
    ),
    flux_like(
        "flux-dev",
        "FluxPipeline",
        lambda given: text(given, pooled_prompt_embeds=given["pooled_projections"], guidance_scale=1.0),
    ),
    flux_like("bria", "BriaPipeline", text, has_vae=True),
    flux_like("ovis", "OvisImagePipeline", lambda given: text(given, guidance_scale=1.0), has_vae=True),
    flux_like(
        "chroma-masked",
        "ChromaPipeline",
        lambda given: text(given, prompt_attention_mask=given["encoder_attention_mask"]),
    ),
    Loop(
        "flux2-dev",
        "Flux2Pipeline",
        lambda given: text(given),
        size=(8, 8),
        taken=lambda tokens: tokens.transpose(1, 2).unflatten(2, (8, 8)),
    ),
    Loop(
        "hunyuandit-1.2",
        "HunyuanDiTPipeline",
        lambda given: text(
            given,
            prompt_attention_mask=given["text_embedding_mask"],
            prompt_embeds_2=given["encoder_hidden_states_t5"],
            prompt_attention_mask_2=given["text_embedding_mask_t5"],
            use_resolution_binning=False,
        ),
        scheduler=diffusers.DDIMScheduler,
    ),
    Loop(
        "cogvideox-5b",
        "CogVideoXPipeline",
        video,
        size=(3, 8, 8),
        scheduler=diffusers.CogVideoXDDIMScheduler,
        given=frames_first,
        taken=frames_first,
    ),
    Loop(
        "cogview4",
        "CogView4Pipeline",
        lambda given: text(given, original_size=(SIDE, SIDE)),
    ),
    Loop(
        "easyanimate",
        "EasyAnimatePipeline",
        lambda given: video(given, prompt_attention_mask=mask(given)),
        size=(3, 8, 8),
        has_vae=True,
    ),
    Loop("wan-t2v", "WanPipeline", video, size=(3, 8, 8)),
    Loop("skyreels-t2v", "SkyReelsV2Pipeline", video, size=(3, 8, 8)),
    Loop(
        "hunyuanvideo",
        "HunyuanVideoPipeline",
        lambda given: video(
            given,
            pooled_prompt_embeds=given["pooled_projections"],
            prompt_attention_mask=given["encoder_attention_mask"],
        ),
        size=(3, 8, 8),
    ),
    Loop(
        "ltx",
        "LTXPipeline",
        lambda given: video(given, prompt_attention_mask=mask(given), frame_rate=24, height=256, width=256),
        size=(2, 8, 8),
        given=diffusers.LTXPipeline._pack_latents,
        taken=lambda tokens: diffusers.LTXPipeline._unpack_latents(tokens, 2, 8, 8),
    ),
    Loop("lumina2", "Lumina2Pipeline", lambda given: text(given, prompt_attention_mask=mask(given))),
    Loop("auraflow", "AuraFlowPipeline", lambda given: text(given, prompt_attention_mask=mask(given))),
    Loop(
        "z-image",
        "ZImagePipeline",
        lambda given: text(given, prompt_embeds=list(given["encoder_hidden_states"]), guidance_scale=0.0),
    ),
    Loop(
        "qwenimage",
        "QwenImagePipeline",
        lambda given: text(given, prompt_embeds_mask=mask(given)),
        size=(1, 16, 16),
        given=lambda latents: packed("FluxPipeline")[0](latents[:, :, 0]),
        taken=lambda tokens: packed("FluxPipeline")[1](tokens).unsqueeze(2),
    ),
    Loop(
        "allegro",
        "AllegroPipeline",
        lambda given: video(given, prompt_attention_mask=given["encoder_attention_mask"]),
        size=(3, 8, 8),
        scheduler=diffusers.EulerDiscreteScheduler,
    ),
    Loop(
        "consisid",
        "pipelines.consisid.pipeline_consisid.ConsisIDPipeline",
        lambda given: video(
            given,
            image=torch.zeros(1, 3, 64, 64),
            id_cond=given["id_cond"],
            id_vit_hidden=list(given["id_vit_hidden"].unbind(1)),
        ),
        size=(3, 8, 8),
        scheduler=diffusers.CogVideoXDDIMScheduler,
        conditions=lambda given: {
            **given,
            "image_latents": torch.nn.functional.pad(image_latents(), (0, 0, 0, 0, 0, 2)),
        },
        given=frames_first,
        taken=frames_first,
        has_vae=True,
    ),
    Loop(
        "mochi", "MochiPipeline", lambda given: video(given, prompt_attention_mask=mask(given).bool()), size=(2, 8, 8)
    ),
    Loop(
        "kandinsky5",
        "Kandinsky5T2VPipeline",
        lambda given: {
            "prompt_embeds_qwen": given["encoder_hidden_states"],
            "prompt_embeds_clip": given["pooled_projections"],
            "prompt_cu_seqlens": torch.tensor([0, given["encoder_hidden_states"].shape[1]]),
            **without(video(given), "prompt_embeds"),
        },
        size=(3, 8, 8),
        conditions=lambda given: {**given, "position_scale": torch.tensor([[1.0, 3.16, 3.16]])},
        given=lambda latents: latents.permute(0, 2, 3, 4, 1),
        taken=lambda latents: latents.permute(0, 4, 1, 2, 3),
    ),
    Loop(
        "cosmos-predict2.5",
        "Cosmos2_5_PredictBasePipeline",
        lambda given: video(given, conditional_frame_timestep=-1.0),
        size=(3, 8, 8),
        conditions=lambda given: {**given, "condition_mask": torch.zeros_like(given["condition_mask"])},
        has_vae=True,
    ),
    Loop(
        "hidream",
        "HiDreamImagePipeline",
        lambda given: {
            "prompt_embeds_t5": given["encoder_hidden_states_t5"],
            "prompt_embeds_llama3": given["encoder_hidden_states_llama3"].transpose(0, 1),
            "pooled_prompt_embeds": given["pooled_embeds"],
            **without(text({"encoder_hidden_states": torch.zeros(0)}), "prompt_embeds"),
        },
        ready=lambda pipeline, _: setattr(pipeline, "default_sample_size", 16),
    ),
    Loop(
        "sana",
        "SanaPipeline",
        lambda given: text(
            given,
            prompt_attention_mask=given["encoder_attention_mask"],
            use_resolution_binning=False,
            height=512,
            width=512,
        ),
    ),
    Loop(
        "latte",
        "LattePipeline",
        lambda given: without(video(given, video_length=3, clean_caption=False, mask_feature=False), "num_frames"),
        size=(3, 8, 8),
        scheduler=diffusers.DDIMScheduler,
    ),
    Loop(
        "omnigen",
        "OmniGenPipeline",
        lambda _: {"prompt": [""], "height": SIDE, "width": SIDE, "guidance_scale": 1.0, "output_type": "latent"},
        scheduler=partial(FLOW, invert_sigmas=True, num_train_timesteps=1),
        has_vae=True,
        ready=lambda pipeline, given: setattr(pipeline, "multimodal_processor", Processor(given)),
    ),
]
