"""Tiny diffusers pipelines with seeded weights, and calls of them, that the library's tests and their ranks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from tests.conftest import LINEAR_BETAS
from tests.support.cases.adapters import add_adapters
from tests.support.cases.families import FAMILIES, SQUARE, UNEVEN, Family

IMAGE_SIDE = 128  # 16 latent pixels where there is no VAE to say so
TEXT_TOKENS = 6
SEED = 3
STEPS = 3
FLOW = diffusers.FlowMatchEulerDiscreteScheduler
Arguments = dict[str, Any]


def shape_name(name: str) -> str:
    """A batch of three, or what plain diffusers can put together of DiT: two that are square."""
    return SQUARE if name == "dit" else UNEVEN


def dit_family() -> Family:
    """DiT with the number of classes that its pipeline takes for granted."""
    return FAMILIES["dit"].of_config(sample_size=32, num_embeds_ada_norm=1000)


# Its pipeline's noise schedule is its own, so that the engine's loop does not take it.
COSMOS_1 = FAMILIES["cosmos-predict2"].of_config(extra_pos_embed_type="learnable")
# Of the size at which the pipeline gives the model the image's resolution and aspect ratio.
PIXART = FAMILIES["pixart-alpha"].of_config(sample_size=128)


def ddim() -> diffusers.DDIMScheduler:
    return diffusers.DDIMScheduler.from_config(LINEAR_BETAS)


def dit() -> diffusers.DiTPipeline:
    torch.manual_seed(4)
    vae = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=32)
    return diffusers.DiTPipeline(dit_family().build(), vae.eval(), ddim())


def save_dit(folder: Path) -> Path:
    """A pipeline folder, as one would download it."""
    dit().save_pretrained(folder)
    return folder


def without_encoders(pipeline_class: type, family: Family, scheduler: Any) -> diffusers.DiffusionPipeline:
    """A pipeline that is called with embeddings and asked for latents."""
    texts = [part for part in pipeline_class._get_signature_types() if part.startswith(("text_", "tokenizer"))]
    absent = dict.fromkeys([*texts, "vae"])
    return pipeline_class(transformer=family.build(), scheduler=scheduler, **absent)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


def embeddings(seed: int, batch: int, *sizes: int) -> torch.Tensor:
    return torch.randn(batch, *sizes, generator=torch.Generator().manual_seed(seed))


def dit_call(batch: int) -> Arguments:
    return {"class_labels": list(range(5, 5 + batch)), "output_type": "pt"}


def negative_texts(batch: int) -> torch.Tensor:
    return embeddings(3, batch, TEXT_TOKENS, 32)


def text_call(batch: int, side: int = IMAGE_SIDE, guided: bool = False, **others: Any) -> Arguments:
    guidance = {"negative_prompt_embeds": negative_texts(batch), "guidance_scale": 3.0} if guided else {}
    return {
        "prompt_embeds": embeddings(1, batch, TEXT_TOKENS, 32),
        "height": side,
        "width": side,
        "output_type": "latent",
        **guidance,
        **others,
    }


def flux_call(batch: int, side: int = IMAGE_SIDE) -> Arguments:
    return text_call(batch, side, pooled_prompt_embeds=embeddings(2, batch, 16))


def flux_cfg_call(batch: int) -> Arguments:
    """With guidance in two forwards a step."""
    pooled = embeddings(4, batch, 16)
    negative = {"negative_prompt_embeds": negative_texts(batch), "negative_pooled_prompt_embeds": pooled}
    return {**flux_call(batch), **negative, "true_cfg_scale": 3.0}


def zimage_call(batch: int) -> Arguments:
    """Prompts of different lengths, in a list; with guidance."""
    texts = list(embeddings(1, batch, 40, 32))
    return text_call(batch, guided=True, prompt_embeds=texts, negative_prompt_embeds=list(negative_texts(batch)))


def masked_call(batch: int) -> Arguments:
    """Of Chroma and Lumina: with guidance, and prompts that a mask ends."""
    mask = (torch.arange(TEXT_TOKENS) < TEXT_TOKENS - 2).float().repeat(batch, 1)
    return text_call(batch, guided=True, prompt_attention_mask=mask, negative_prompt_attention_mask=mask.flip(0))


def sd3_call(batch: int) -> Arguments:
    pooled, negative = (embeddings(seed, batch, 16) for seed in (2, 4))
    return text_call(batch, guided=True, pooled_prompt_embeds=pooled, negative_pooled_prompt_embeds=negative)


def pixart_call(batch: int) -> Arguments:
    """Prompts of different lengths: a mask says where they end."""
    mask = lengths_mask(torch.arange(batch) % TEXT_TOKENS + 1)
    masks = {"prompt_attention_mask": mask, "negative_prompt_attention_mask": mask.flip(0)}
    words = {"prompt": None, "negative_prompt": None}
    return text_call(batch, guided=True, use_resolution_binning=False, **words, **masks)


def lengths_mask(lengths_B: torch.Tensor) -> torch.Tensor:
    return (torch.arange(TEXT_TOKENS) < lengths_B[:, None]).long()


def qwenimage_call(batch: int) -> Arguments:
    """Prompts of different lengths, with guidance in two forwards a step."""
    mask = lengths_mask(TEXT_TOKENS - 1 - torch.arange(batch))
    masks = {"prompt_embeds_mask": mask, "negative_prompt_embeds_mask": mask.flip(0)}
    return text_call(batch, negative_prompt_embeds=negative_texts(batch), true_cfg_scale=3.0, **masks)


@dataclass(frozen=True)
class Call:
    """A pipeline, and arguments for a batch of it."""

    pipeline: Callable[[], diffusers.DiffusionPipeline]
    arguments: Callable[[int], Arguments]

    def run(self, pipeline: diffusers.DiffusionPipeline, batch: int, generator: torch.Generator | None) -> torch.Tensor:
        pipeline.set_progress_bar_config(disable=True)
        result = pipeline(**self.arguments(batch), generator=generator, num_inference_steps=STEPS)
        return (result.frames if hasattr(result, "frames") else result.images).detach().contiguous()


def of_latents(pipeline_class: type, family: Family, scheduler: Any = FLOW) -> Callable[[], Any]:
    """What makes such a pipeline. scheduler: what makes its own."""
    return lambda: without_encoders(pipeline_class, family, scheduler())


flux = of_latents(diffusers.FluxPipeline, FAMILIES["flux-dev"])
sd3 = of_latents(diffusers.StableDiffusion3Pipeline, FAMILIES["sd3.5"])
wan = of_latents(
    diffusers.WanPipeline,
    FAMILIES["wan-t2v"],
    partial(diffusers.UniPCMultistepScheduler, prediction_type="flow_prediction", use_flow_sigmas=True),
)


def adapted(make: Callable[[], Any], part: str) -> Callable[[], Any]:
    """What makes such a pipeline with adapters in a part."""

    def build() -> Any:
        pipeline = make()
        add_adapters(getattr(pipeline, part))
        return pipeline

    return build


def sd3_with_encoders() -> diffusers.StableDiffusion3Pipeline:
    """A whole pipeline, from words to pixels, as small as can be. Its words are letters; it has no T5."""
    config, tokenizer = clip(hidden_size=16)
    torch.manual_seed(4)
    encoders = [transformers.CLIPTextModelWithProjection(config).eval() for _ in range(2)]
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4, shift_factor=0.0,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    return diffusers.StableDiffusion3Pipeline(
        FAMILIES["sd3.5"].build(), diffusers.FlowMatchEulerDiscreteScheduler(), vae.eval(),
        encoders[0], tokenizer, encoders[1], tokenizer, None, None,
    )  # fmt: skip


def clip(hidden_size: int) -> tuple[transformers.CLIPTextConfig, transformers.CLIPTokenizer]:
    """A tiny encoder's config, and its tokenizer, whose words are letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    config = transformers.CLIPTextConfig(
        vocab_size=len(words), hidden_size=hidden_size, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, projection_dim=8, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    vocabulary = {word: place for place, word in enumerate(words)}
    return config, transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=16)


def wan_call(batch: int) -> Arguments:
    texts = {"prompt_embeds": embeddings(1, batch, TEXT_TOKENS, 16)}
    negative = {"negative_prompt_embeds": embeddings(3, batch, TEXT_TOKENS, 16), "guidance_scale": 3.0}
    return {**texts, **negative, "height": 64, "width": 96, "num_frames": 17, "output_type": "latent"}


def wan22() -> diffusers.WanPipeline:
    """With a second transformer for low noise, of other weights."""
    pipeline = wan()
    other = FAMILIES["wan-t2v"].build()
    for weight in other.parameters():
        weight.data.mul_(0.9)
    return diffusers.WanPipeline(**{**pipeline.components, "transformer_2": other}, boundary_ratio=0.9)


# Of Stable Diffusion 1's form and of SDXL's. Latents of 13 × 9 do not halve evenly.
SD_UNET = {
    "block_out_channels": (8, 16, 16),
    "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    "attention_head_dim": 2,
    **{"cross_attention_dim": 32, "norm_num_groups": 4, "layers_per_block": 1},
}
SDXL_UNET = {
    "block_out_channels": (8, 16, 16),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": (2, 2, 4),
    "transformer_layers_per_block": (1, 1, 2),
    **{"cross_attention_dim": 32, "norm_num_groups": 4, "layers_per_block": 1, "use_linear_projection": True},
    **{"addition_embed_type": "text_time", "addition_time_embed_dim": 4},
    "projection_class_embeddings_input_dim": 6 * 4 + 16,
}


def unet(**config: Any) -> diffusers.UNet2DConditionModel:
    torch.manual_seed(4)
    return diffusers.UNet2DConditionModel(**config).eval()


def unet_pipeline(pipeline_class: type, scheduler: Any, **config: Any) -> diffusers.DiffusionPipeline:
    model = unet(**config)
    levels = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    vae = diffusers.AutoencoderKL(block_out_channels=(8,) * 4, norm_num_groups=4, latent_channels=4, **levels)
    absent = {part for part in pipeline_class._get_signature_types() if part.startswith(("text_", "tokenizer"))}
    absent |= {"safety_checker", "feature_extractor"} if pipeline_class is diffusers.StableDiffusionPipeline else set()
    checks = {"requires_safety_checker": False} if "safety_checker" in absent else {}
    return pipeline_class(unet=model, vae=vae.eval(), scheduler=scheduler, **dict.fromkeys(absent), **checks)


def stable_diffusion() -> diffusers.DiffusionPipeline:
    scheduler = diffusers.DDIMScheduler.from_config(LINEAR_BETAS, steps_offset=1)
    return unet_pipeline(diffusers.StableDiffusionPipeline, scheduler, **SD_UNET)


def stable_diffusion_with_encoder() -> diffusers.DiffusionPipeline:
    """From words to pixels."""
    config, tokenizer = clip(hidden_size=32)
    pipeline = stable_diffusion()
    pipeline.register_modules(text_encoder=transformers.CLIPTextModel(config).eval(), tokenizer=tokenizer)
    return pipeline


def sdxl() -> diffusers.DiffusionPipeline:
    return unet_pipeline(diffusers.StableDiffusionXLPipeline, diffusers.EulerDiscreteScheduler(), **SDXL_UNET)


def unet_call(batch: int) -> Arguments:
    """With guidance in one forward, and decoded."""
    return text_call(batch, guided=True, **{"height": 104, "width": 72, "output_type": "pt"})


def sdxl_call(batch: int) -> Arguments:
    return {**sd3_call(batch), **unet_call(batch)}


def unet_inputs(batch: int) -> dict[str, Any]:
    """The arguments of a call of SDXL's UNet."""
    return {
        "sample": embeddings(5, batch, 4, 13, 9),
        "timestep": torch.tensor([500.0, 20.0, 900.0])[:batch],
        "encoder_hidden_states": embeddings(1, batch, TEXT_TOKENS, 32),
        "added_cond_kwargs": {"text_embeds": embeddings(2, batch, 16), "time_ids": embeddings(4, batch, 6).abs() * 100},
    }


CALLS = {
    "DiT": Call(dit, dit_call),
    "Flux": Call(flux, flux_call),
    "Flux, two forwards": Call(flux, flux_cfg_call),
    # Four images of four tokens, so that position ids could pass for rows of the batch.
    "Flux, as many tokens as rows": Call(flux, partial(flux_call, side=32)),
    "Flux with adapters": Call(adapted(flux, "transformer"), flux_call),
    "Chroma": Call(of_latents(diffusers.ChromaPipeline, FAMILIES["chroma"]), masked_call),
    "Flux.2": Call(
        of_latents(diffusers.Flux2Pipeline, FAMILIES["flux2-dev"], partial(FLOW, use_dynamic_shifting=True)),
        partial(text_call, side=112),
    ),
    "Z-Image": Call(of_latents(diffusers.ZImagePipeline, FAMILIES["z-image"]), zimage_call),
    "SD3": Call(sd3, sd3_call),
    "PixArt": Call(of_latents(diffusers.PixArtAlphaPipeline, PIXART, ddim), pixart_call),
    "Qwen-Image": Call(of_latents(diffusers.QwenImagePipeline, FAMILIES["qwenimage"]), qwenimage_call),
    "Wan 2.2": Call(wan22, wan_call),
    "Stable Diffusion": Call(stable_diffusion, unet_call),
    "SDXL": Call(sdxl, sdxl_call),
    "SDXL with adapters": Call(adapted(sdxl, "unet"), sdxl_call),
}
