"""One tiny, seeded model a family, with inputs and the plain diffusers call that the engine is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import diffusers
import torch

Tensors = dict[str, torch.Tensor]
SQUARE, UNEVEN = "square", "odd batch, not square, tokens that do not divide"
IMAGES = {SQUARE: (2, 16, 16), UNEVEN: (3, 10, 14)}
VIDEOS = {SQUARE: (2, 2, 8, 8), UNEVEN: (3, 3, 6, 10)}
TEXT_TOKENS = 7


@dataclass(frozen=True)
class Family:
    """model_class and config of a tiny diffusers model.

    conditions: (batch, height, width), or (batch, frames, height, width) for video, to the engine's conditions.
    reference: (model, latents, timestep, conditions) to what one process on plain diffusers predicts.
    shapes: by name, the arguments of `conditions` to test with.
    channels: of the latents, if the model's input has other ones.
    timesteps: the first and the last of the batch; exact in bf16, as some models cast them before they embed them.
    by_frame: there is one for each of a row's frames, of which the first is 0.
    """

    model_class: str
    config: dict
    conditions: Callable[..., Tensors]
    reference: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, Tensors], torch.Tensor]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=lambda: IMAGES)
    channels: int | None = None
    timesteps: tuple[float, float] = (100, 900)
    by_frame: bool = False

    def build(self) -> torch.nn.Module:
        """The model with seeded weights, perturbed so that every block and every gate matters."""
        torch.manual_seed(0)
        model = getattr(diffusers, self.model_class)(**self.config)
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        return model.eval()

    def save(self, folder: Path) -> Path:
        self.build().save_pretrained(folder)
        return folder

    def inputs(self, batch: int, *sizes: int) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        torch.manual_seed(1)
        latents = torch.randn(batch, self.channels or self.config["in_channels"], *sizes)
        timesteps = torch.linspace(*self.timesteps, batch)
        if self.by_frame:
            timesteps = timesteps[:, None] * (torch.arange(sizes[0]) > 0)
        return latents, timesteps, self.conditions(batch, *sizes)


def text_mask(batch: int, tokens: int = TEXT_TOKENS) -> torch.Tensor:
    """Prompts of different lengths, of which the second fills all tokens."""
    lengths = torch.tensor([tokens // 2 + 1, tokens, 3])[:batch]
    return (torch.arange(tokens) < lengths[:, None]).long()


def dit_reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, conditions: Tensors):
    """Plain diffusers. For latents that are not square, whose image diffusers cannot put together, the head's tokens
    are read where they leave the model and put together here, patch by patch."""
    tokens = []
    hook = model.proj_out_2.register_forward_hook(lambda _m, _a, out: tokens.append(out))
    try:
        sample = model(latents, timestep=timestep, **conditions).sample
    except RuntimeError:
        assert latents.shape[-2] != latents.shape[-1]
    hook.remove()
    channels, patch = model.config.in_channels, model.config.patch_size
    height, width = latents.shape[-2:]
    if height == width:
        return sample[:, :channels]
    image = latents.new_zeros(len(latents), model.out_channels, height, width)
    for index, patch_BK in enumerate(tokens[0].unbind(1)):
        row, column = divmod(index, width // patch)
        pixels = patch_BK.reshape(-1, patch, patch, model.out_channels).permute(0, 3, 1, 2)
        image[:, :, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] = pixels
    return image[:, :channels]


def pixart_reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, conditions: Tensors):
    sizes = {name: conditions[name] for name in ("resolution", "aspect_ratio")}
    text = conditions["encoder_hidden_states"]
    sample = model(latents, encoder_hidden_states=text, timestep=timestep, added_cond_kwargs=sizes).sample
    return sample[:, : model.config.in_channels]


def pixart_conditions(batch: int, height: int, width: int) -> Tensors:
    return {
        "encoder_hidden_states": torch.randn(batch, 7, 32),
        "resolution": torch.tensor([[height * 8.0, width * 8.0]]).repeat(batch, 1),
        "aspect_ratio": torch.tensor([[height / width]]).repeat(batch, 1),
    }


def pixart(use_additional_conditions: bool) -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 24,
        "num_layers": 3,
        "cross_attention_dim": 96,
        "sample_size": 16,
        "caption_channels": 32,
        "in_channels": 4,
        "use_additional_conditions": use_additional_conditions,
    }
    return Family("PixArtTransformer2DModel", config, pixart_conditions, pixart_reference)


def sd3(dual_attention_layers: tuple[int, ...], qk_norm: str | None) -> Family:
    config = {
        "sample_size": 16,
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 3,
        "attention_head_dim": 8,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "caption_projection_dim": 32,
        "pooled_projection_dim": 16,
        "pos_embed_max_size": 12,
        "dual_attention_layers": dual_attention_layers,
        "qk_norm": qk_norm,
    }

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        return {
            "encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32),
            "pooled_projections": torch.randn(batch, 16),
        }

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        return model(latents, given["encoder_hidden_states"], given["pooled_projections"], timestep).sample

    return Family("SD3Transformer2DModel", config, conditions, reference)


def flux(guidance_embeds: bool, image_channels: int = 0, references: tuple[tuple[int, int], ...] = ()) -> Family:
    config = {
        "in_channels": 16 + 4 * image_channels,
        "out_channels": 16 if image_channels else None,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 16,
        "guidance_embeds": guidance_embeds,
        "axes_dims_rope": (4, 6, 6),
    }

    names = [f"reference_latents_{number}" for number in range(1, len(references) + 1)]

    def conditions(batch: int, height: int, width: int) -> Tensors:
        given = {
            "encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32),
            "pooled_projections": torch.randn(batch, 16),
        }
        given.update({name: torch.randn(batch, 4, *size) for name, size in zip(names, references, strict=True)})
        if image_channels:
            given["image_latents"] = torch.randn(batch, image_channels, height, width)
        return {**given, "guidance": torch.tensor([1.0, 2.0, 4.0])[:batch]} if guidance_embeds else given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        pipeline = diffusers.FluxPipeline
        batch, channels, height, width = latents.shape
        under = [given["image_latents"]] if image_channels else []
        seen = [pipeline._pack_latents(x, batch, x.shape[1], height, width) for x in (latents, *under)]
        packed, ids = [torch.cat(seen, dim=2)], []
        for number, image in enumerate([latents, *(given[name] for name in names)]):
            ids.append(
                pipeline._prepare_latent_image_ids(
                    batch, image.shape[-2] // 2, image.shape[-1] // 2, "cpu", torch.float32
                )
            )
            ids[-1][:, 0] = number
            if number:
                packed.append(pipeline._pack_latents(image, batch, channels, *image.shape[-2:]))
        tokens = model(
            hidden_states=torch.cat(packed, dim=1),
            timestep=timestep,
            guidance=given.get("guidance"),
            pooled_projections=given["pooled_projections"],
            encoder_hidden_states=given["encoder_hidden_states"],
            txt_ids=torch.zeros(given["encoder_hidden_states"].shape[1], 3),
            img_ids=torch.cat(ids),
        ).sample[:, : packed[0].shape[1]]
        return pipeline._unpack_latents(tokens, height, width, vae_scale_factor=1)

    return Family("FluxTransformer2DModel", config, conditions, reference, channels=4, timesteps=(0, 0.5))


def bria() -> Family:
    config = {
        "in_channels": 16,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "axes_dims_rope": (4, 6, 6),
    }

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        return {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32)}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        from diffusers.pipelines.bria.pipeline_bria import BriaPipeline as pipeline

        batch, channels, height, width = latents.shape
        tokens = model(
            hidden_states=pipeline._pack_latents(latents, batch, channels, height, width),
            timestep=timestep,
            encoder_hidden_states=given["encoder_hidden_states"],
            txt_ids=torch.zeros(TEXT_TOKENS, 3),
            img_ids=pipeline._prepare_latent_image_ids(batch, height // 2, width // 2, "cpu", torch.float32)[0],
        ).sample
        return pipeline._unpack_latents(tokens, height // 2, width // 2, vae_scale_factor=1)

    return Family("BriaTransformer2DModel", config, conditions, reference, channels=4)


def hunyuandit(use_style_cond_and_image_meta_size: bool) -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 8,
        "in_channels": 4,
        "patch_size": 2,
        "sample_size": 16,
        "hidden_size": 32,
        "num_layers": 6,
        "cross_attention_dim": 24,
        "cross_attention_dim_t5": 16,
        "pooled_projection_dim": 16,
        "text_len": 5,
        "text_len_t5": TEXT_TOKENS,
        "use_style_cond_and_image_meta_size": use_style_cond_and_image_meta_size,
    }

    def conditions(batch: int, height: int, width: int) -> Tensors:
        text = {
            "encoder_hidden_states": torch.randn(batch, 5, 24),
            "text_embedding_mask": torch.tensor([[1, 1, 1, 0, 0]]).repeat(batch, 1),
            "encoder_hidden_states_t5": torch.randn(batch, TEXT_TOKENS, 16),
            "text_embedding_mask_t5": torch.tensor([[1, 1, 1, 1, 1, 1, 0]]).repeat(batch, 1),
        }
        size = torch.tensor([[8.0 * height, 8.0 * width, 8.0 * height, 8.0 * width, 0, 0]]).repeat(batch, 1)
        meta = {"image_meta_size": size, "style": torch.zeros(batch, dtype=torch.int64)}
        return {**text, **meta} if use_style_cond_and_image_meta_size else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        from diffusers.pipelines.hunyuandit import pipeline_hunyuandit as pipeline

        grid = (latents.shape[-2] // 2, latents.shape[-1] // 2)
        crop = pipeline.get_resize_crop_region_for_grid(grid, 32)
        rotary = pipeline.get_2d_rotary_pos_embed(8, crop, grid, output_type="pt")
        return model(latents, timestep, image_rotary_emb=rotary, **given).sample.chunk(2, dim=1)[0]

    return Family("HunyuanDiT2DModel", config, conditions, reference)


def cogvideox(image: bool = False, **config: object) -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "in_channels": 8 if image else 4,
        "out_channels": 4,
        "time_embed_dim": 8,
        "text_embed_dim": 16,
        "num_layers": 3,
        "sample_width": 10,
        "sample_height": 8,
        "sample_frames": 9,
        "max_text_seq_length": TEXT_TOKENS,
        **config,
    }

    def conditions(batch: int, *sizes: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 16)}
        return {**text, "image_latents": torch.randn(batch, 4, *sizes)} if image else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        latents = latents.permute(0, 2, 1, 3, 4)
        frames, _, height, width = latents.shape[1:]
        keywords = {}
        if config.get("use_rotary_positional_embeddings"):
            pipeline = SimpleNamespace(vae_scale_factor_spatial=1, transformer=model)
            make = diffusers.CogVideoXPipeline._prepare_rotary_positional_embeddings
            keywords["image_rotary_emb"] = make(pipeline, height, width, frames, torch.device("cpu"))
        if image:
            latents = torch.cat([latents, given["image_latents"].permute(0, 2, 1, 3, 4)], dim=2)
        if config.get("ofs_embed_dim"):
            keywords["ofs"] = latents.new_full((1,), fill_value=2.0)
        return model(latents, given["encoder_hidden_states"], timestep, **keywords).sample.permute(0, 2, 1, 3, 4)

    shapes = {SQUARE: (2, 4, 8, 8), UNEVEN: (3, 2, 6, 10)} if config.get("patch_size_t") else VIDEOS
    return Family("CogVideoXTransformer3DModel", config, conditions, reference, shapes, channels=4)


def easyanimate(extra: int = 0, **config: object) -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "in_channels": 4 + extra,
        "out_channels": 4,
        "patch_size": 2,
        "num_layers": 4,
        "mmdit_layers": 2,
        "time_embed_dim": 8,
        "text_embed_dim": 16,
        "add_norm_text_encoder": True,
        **config,
    }

    def conditions(batch: int, *sizes: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 16)}
        return {**text, "image_latents": torch.randn(batch, extra, *sizes)} if extra else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        text, images = given["encoder_hidden_states"], given.get("image_latents")
        return model(latents, timestep, encoder_hidden_states=text, inpaint_latents=images).sample

    return Family("EasyAnimateTransformer3DModel", config, conditions, reference, VIDEOS, channels=4)


def wan(
    text_tokens: int = TEXT_TOKENS, image_tokens: int = 0, images: int = 1, by_frame: bool = False, **config: object
) -> Family:
    config = {
        "num_attention_heads": 5,
        "attention_head_dim": 12,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 16,
        "freq_dim": 16,
        "ffn_dim": 32,
        "num_layers": 3,
        "rope_max_seq_len": 16,
        **config,
    }
    extra = config["in_channels"] - config["out_channels"]

    def conditions(batch: int, *sizes: int) -> Tensors:
        given = {"encoder_hidden_states": torch.randn(batch, text_tokens, 16)}
        if image_tokens:
            given["encoder_hidden_states_image"] = torch.randn(batch, images * image_tokens, 24)
        if extra:
            given["image_latents"] = torch.randn(batch, extra, *sizes)
        return given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        if extra:
            latents = torch.cat([latents, given["image_latents"]], dim=1)
        image = given["encoder_hidden_states_image"].view(-1, image_tokens, 24) if image_tokens else None
        if timestep.ndim == 2:  # one a token, of patches of 2×2
            timestep = timestep.repeat_interleave(math.prod(latents.shape[-2:]) // 4, 1)
        return model(latents, timestep, given["encoder_hidden_states"], image).sample

    return Family("WanTransformer3DModel", config, conditions, reference, VIDEOS, channels=4, by_frame=by_frame)


def skyreels(*sizes: int, **config: object) -> Family:
    """Takes what `wan` takes: a pipeline calls it alike."""
    return replace(wan(*sizes, **config), model_class="SkyReelsV2Transformer3DModel")


def cogview4() -> Family:
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 3,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "text_embed_dim": 32,
        "time_embed_dim": 8,
        "condition_dim": 4,
        "rope_axes_dim": (16, 16),
    }

    def conditions(batch: int, height: int, width: int) -> Tensors:
        size = torch.tensor([[8.0 * height, 8.0 * width]]).repeat(batch, 1)
        text = torch.randn(batch, TEXT_TOKENS, 32)
        crop = torch.zeros(batch, 2)
        return {"encoder_hidden_states": text, "original_size": size, "target_size": size, "crop_coords": crop}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        sizes = (given[name] for name in ("original_size", "target_size", "crop_coords"))
        return model(latents, given["encoder_hidden_states"], timestep, *sizes).sample

    return Family("CogView4Transformer2DModel", config, conditions, reference)


def qwenimage(
    text_tokens: int = TEXT_TOKENS, mask: bool = False, references: tuple[tuple[int, int], ...] = (), **config: object
) -> Family:
    config = {
        "in_channels": 16,
        "out_channels": 4,
        "num_layers": 3,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "axes_dims_rope": (4, 6, 6),
        **config,
    }
    names = ("reference_latents_1", "reference_latents_2")[: len(references)]

    def conditions(batch: int, *_sizes: int) -> Tensors:
        given = {"encoder_hidden_states": torch.randn(batch, text_tokens, 32)}
        given.update({name: torch.randn(batch, 4, 1, *size) for name, size in zip(names, references, strict=True)})
        return {**given, "encoder_hidden_states_mask": text_mask(batch)} if mask else given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        pipeline = diffusers.QwenImagePipeline
        batch, channels, _, height, width = latents.shape
        images = [latents, *(given[name] for name in names)]
        packed = [pipeline._pack_latents(image, batch, channels, *image.shape[-2:]) for image in images]
        tokens = model(
            hidden_states=torch.cat(packed, dim=1),
            timestep=timestep,
            guidance=None,
            encoder_hidden_states_mask=given.get("encoder_hidden_states_mask"),
            encoder_hidden_states=given["encoder_hidden_states"],
            img_shapes=[[(1, image.shape[-2] // 2, image.shape[-1] // 2) for image in images]] * batch,
        ).sample[:, : packed[0].shape[1]]
        return pipeline._unpack_latents(tokens, height, width, vae_scale_factor=1)

    shapes = {name: (batch, 1, *size) for name, (batch, *size) in IMAGES.items()}
    timesteps = (0, 0.5)
    return Family("QwenImageTransformer2DModel", config, conditions, reference, shapes, channels=4, timesteps=timesteps)


def hunyuanvideo(
    text_tokens: int = TEXT_TOKENS, guidance_embeds: bool = True, mask: bool = True, image: bool = False
) -> Family:
    config = {
        "in_channels": 9 if image else 4,
        "out_channels": 4,
        "num_attention_heads": 4,
        "attention_head_dim": 12,
        "num_layers": 2,
        "num_single_layers": 2,
        "num_refiner_layers": 1,
        "guidance_embeds": guidance_embeds,
        "text_embed_dim": 24,
        "pooled_projection_dim": 16,
        "rope_axes_dim": (4, 4, 4),
    }

    def conditions(batch: int, *sizes: int) -> Tensors:
        given = {
            "encoder_hidden_states": torch.randn(batch, text_tokens, 24),
            "pooled_projections": torch.randn(batch, 16),
        }
        if mask:
            given["encoder_attention_mask"] = text_mask(batch)
        if image:
            given["image_latents"] = torch.randn(batch, 5, *sizes)
        return {**given, "guidance": torch.tensor([1.0, 2.0, 4.0])[:batch]} if guidance_embeds else given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        text = given["encoder_hidden_states"]
        return model(
            hidden_states=torch.cat([latents, given["image_latents"]], dim=1) if image else latents,
            timestep=timestep,
            encoder_hidden_states=text,
            encoder_attention_mask=given["encoder_attention_mask"] if mask else torch.ones(text.shape[:2]),
            pooled_projections=given["pooled_projections"],
            guidance=given["guidance"] * 1000.0 if guidance_embeds else None,
        ).sample

    return Family("HunyuanVideoTransformer3DModel", config, conditions, reference, VIDEOS, channels=4)


def ltx(mask: bool = False, coords: bool = False) -> Family:
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 4,
        "attention_head_dim": 8,
        "cross_attention_dim": 32,
        "num_layers": 3,
        "caption_channels": 24,
    }

    def conditions(batch: int, *sizes: int) -> Tensors:
        given = {
            "encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 24),
            "frame_rate": torch.full((batch,), 24.0),
        }
        if mask:
            given["encoder_attention_mask"] = text_mask(batch)
        if coords:
            pipeline = diffusers.LTXConditionPipeline
            given["video_coords"] = pipeline._scale_video_ids(pipeline._prepare_video_ids(batch, *sizes))
        return given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        frames, height, width = latents.shape[2:]
        frame_rate = float(given["frame_rate"][0])
        if coords:
            positions = {"video_coords": given["video_coords"].float()}
            positions["video_coords"][:, 0] = positions["video_coords"][:, 0] * (1.0 / frame_rate)
        else:
            positions = {"num_frames": frames, "height": height, "width": width}
            positions["rope_interpolation_scale"] = (8 / frame_rate, 32, 32)
        tokens = model(
            hidden_states=diffusers.LTXPipeline._pack_latents(latents),
            encoder_hidden_states=given["encoder_hidden_states"],
            timestep=1000 * timestep,
            encoder_attention_mask=given.get("encoder_attention_mask"),
            **positions,
        ).sample
        return diffusers.LTXPipeline._unpack_latents(tokens, frames, height, width)

    return Family("LTXVideoTransformer3DModel", config, conditions, reference, VIDEOS, timesteps=(0, 0.5))


def chroma(masked: bool) -> Family:
    config = {
        "in_channels": 16,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "axes_dims_rope": (4, 6, 6),
        "approximator_num_channels": 16,
        "approximator_hidden_dim": 32,
        "approximator_layers": 2,
    }

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32)}
        return {**text, "encoder_attention_mask": text_mask(batch, TEXT_TOKENS).float()} if masked else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        pipeline = diffusers.ChromaPipeline
        batch, channels, height, width = latents.shape
        tokens = pipeline._pack_latents(latents, batch, channels, height, width)
        mask = given.get("encoder_attention_mask")
        tokens = model(
            hidden_states=tokens,
            timestep=timestep,
            encoder_hidden_states=given["encoder_hidden_states"],
            txt_ids=torch.zeros(given["encoder_hidden_states"].shape[1], 3),
            img_ids=pipeline._prepare_latent_image_ids(batch, height // 2, width // 2, "cpu", torch.float32),
            attention_mask=pipeline._prepare_attention_mask(None, batch, tokens.shape[1], latents.dtype, mask),
        ).sample
        return pipeline._unpack_latents(tokens, height, width, vae_scale_factor=1)

    return Family("ChromaTransformer2DModel", config, conditions, reference, channels=4, timesteps=(0, 0.5))


def flux2(guidance_embeds: bool, references: tuple[tuple[int, int], ...] = ()) -> Family:
    config = {
        "in_channels": 8,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "timestep_guidance_channels": 16,
        "axes_dims_rope": (4, 4, 4, 4),
        "guidance_embeds": guidance_embeds,
    }

    names = [f"reference_latents_{number}" for number in range(1, len(references) + 1)]

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        given = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32)}
        given.update({name: torch.randn(batch, 8, *size) for name, size in zip(names, references, strict=True)})
        return {**given, "guidance": torch.tensor([1.0, 2.0, 4.0])[:batch]} if guidance_embeds else given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        pipeline = diffusers.Flux2Pipeline
        ids, images = pipeline._prepare_latent_ids(latents), [latents, *(given[name] for name in names)]
        all_ids = [ids]
        if references:
            batchless = [image[:1] for image in images[1:]]
            all_ids.append(pipeline._prepare_image_ids(batchless).expand(len(latents), -1, -1))
        tokens = model(
            hidden_states=torch.cat([pipeline._pack_latents(image) for image in images], dim=1),
            timestep=timestep,
            guidance=given.get("guidance"),
            encoder_hidden_states=given["encoder_hidden_states"],
            txt_ids=pipeline._prepare_text_ids(given["encoder_hidden_states"]),
            img_ids=torch.cat(all_ids, dim=1),
        ).sample[:, : ids.shape[1]]
        return pipeline._unpack_latents_with_ids(tokens, ids)

    shapes = {SQUARE: (2, 8, 8), UNEVEN: (3, 5, 7)}
    return Family("Flux2Transformer2DModel", config, conditions, reference, shapes, timesteps=(0, 0.5))


def auraflow() -> Family:
    config = {
        "sample_size": 16,
        "num_mmdit_layers": 2,
        "num_single_dit_layers": 2,
        "attention_head_dim": 8,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "caption_projection_dim": 32,
        "pos_embed_max_size": 64,
        "in_channels": 4,
    }

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        return {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32)}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        return model(latents, encoder_hidden_states=given["encoder_hidden_states"], timestep=timestep).sample

    return Family("AuraFlowTransformer2DModel", config, conditions, reference, timesteps=(0, 0.5))


def zimage(text_tokens: int, masked: bool) -> Family:
    config = {
        "in_channels": 4,
        "dim": 64,
        "n_layers": 3,
        "n_refiner_layers": 1,
        "n_heads": 4,
        "n_kv_heads": 4,
        "cap_feat_dim": 32,
        "axes_dims": (4, 6, 6),
        "axes_lens": (128, 16, 16),
    }

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, text_tokens, 32)}
        return {**text, "encoder_attention_mask": text_mask(batch, text_tokens)} if masked else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        texts = list(given["encoder_hidden_states"])
        if masked:
            texts = [text[mask.bool()] for text, mask in zip(texts, given["encoder_attention_mask"], strict=True)]
        images = model(list(latents.unsqueeze(2).unbind(dim=0)), 1 - timestep, texts).sample
        return -torch.stack(images).squeeze(2)

    return Family("ZImageTransformer2DModel", config, conditions, reference, timesteps=(0, 0.5))


def lumina2(masked: bool) -> Family:
    config = {
        "sample_size": 16,
        "in_channels": 4,
        "hidden_size": 96,
        "num_layers": 3,
        "num_refiner_layers": 1,
        "num_attention_heads": 6,
        "num_kv_heads": 3,
        "multiple_of": 16,
        "axes_dim_rope": (4, 6, 6),
        "axes_lens": (32, 16, 16),
        "cap_feat_dim": 32,
    }

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32)}
        return {**text, "encoder_attention_mask": text_mask(batch, TEXT_TOKENS)} if masked else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        text = given["encoder_hidden_states"]
        mask = given.get("encoder_attention_mask", torch.ones(text.shape[:2], dtype=torch.long))
        return -model(latents, 1 - timestep, text, mask).sample

    return Family("Lumina2Transformer2DModel", config, conditions, reference, timesteps=(0, 0.5))


FAMILIES = {
    "dit": Family(
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 3,
            "sample_size": 16,
            "num_embeds_ada_norm": 10,
        },
        lambda batch, _height, _width: {"class_labels": torch.arange(batch) * 5 % 11},
        dit_reference,
        {**IMAGES, "a single image": (1, 6, 10)},
    ),
    "pixart-alpha": pixart(use_additional_conditions=True),
    "pixart-sigma": pixart(use_additional_conditions=False),
    "sd3": sd3(dual_attention_layers=(), qk_norm=None),
    "sd3.5": sd3(dual_attention_layers=(0, 1), qk_norm="rms_norm"),
    "flux-dev": flux(guidance_embeds=True),
    "flux-schnell": flux(guidance_embeds=False),
    "flux-fill": flux(guidance_embeds=True, image_channels=5),
    "flux-kontext": flux(guidance_embeds=True, references=((8, 6), (4, 10))),
    "bria": bria(),
    "hunyuandit-1.1": hunyuandit(use_style_cond_and_image_meta_size=True),
    "hunyuandit-1.2": hunyuandit(use_style_cond_and_image_meta_size=False),
    "cogvideox-2b": cogvideox(),
    "cogvideox-5b": cogvideox(use_rotary_positional_embeddings=True),
    "cogvideox-1.5-i2v": cogvideox(
        image=True, use_rotary_positional_embeddings=True, patch_size_t=2, ofs_embed_dim=8, patch_bias=False
    ),
    "cogview4": cogview4(),
    "easyanimate": easyanimate(),
    "easyanimate-inp": easyanimate(extra=5, after_norm=True),
    "wan-t2v": wan(),
    "wan-2.1-i2v": wan(512, 5, in_channels=9, image_dim=24, added_kv_proj_dim=60),
    "wan-2.1-flf2v": wan(512, 5, 2, in_channels=9, image_dim=24, added_kv_proj_dim=60, pos_embed_seq_len=10),
    "wan-2.2-i2v": wan(in_channels=9),
    "wan-2.2-ti2v": wan(by_frame=True),
    "skyreels-t2v": skyreels(),
    "skyreels-i2v": skyreels(512, 5, in_channels=9, image_dim=24, added_kv_proj_dim=60),
    "qwenimage": qwenimage(text_tokens=17),
    "qwenimage-mask": qwenimage(mask=True),
    "qwenimage-edit": qwenimage(mask=True, references=((8, 12), (6, 6)), zero_cond_t=True),
    "hunyuanvideo": hunyuanvideo(),
    "hunyuanvideo-no-guidance": hunyuanvideo(text_tokens=67, guidance_embeds=False, mask=False),
    "hunyuanvideo-i2v": hunyuanvideo(image=True),
    "ltx": ltx(),
    "ltx-mask": ltx(mask=True),
    "ltx-0.9.5": ltx(mask=True, coords=True),
    "chroma": chroma(masked=False),
    "chroma-masked": chroma(masked=True),
    "flux2-dev": flux2(guidance_embeds=True),
    "flux2-klein": flux2(guidance_embeds=False),
    "flux2-edit": flux2(guidance_embeds=True, references=((4, 6), (3, 5))),
    "auraflow": auraflow(),
    "z-image": zimage(TEXT_TOKENS, masked=False),
    "z-image-masked": zimage(40, masked=True),
    "lumina2": lumina2(masked=False),
    "lumina2-masked": lumina2(masked=True),
}
# 310 MB in fp32.
WIDE = replace(
    FAMILIES["dit"],
    config={**FAMILIES["dit"].config, "num_attention_heads": 16, "attention_head_dim": 64, "num_layers": 4},
)
