"""Kandinsky 5 (https://arxiv.org/abs/2511.14993): images, and videos from text or an image. No sparse attention."""

import torch

from ..errors import RequestError
from .adapter import Adapter, Config, Tensors, needs, register_adapter, text_within, usual_spec
from .spec import single_stream

POSITIONS = 128  # in each direction

needed = needs(image_latents=lambda config: config["visual_cond"] and config["in_visual_dim"] + 1)
short = text_within(lambda _config: 1024)


def check(config: Config, conditions: Tensors) -> None:
    """Raises RequestError for a model with sparse attention, and for conditions that do not fit the model."""
    if config["attention_type"] != "regular":
        raise RequestError(
            f"This Kandinsky 5 has attention of the kind {config['attention_type']}, which takes tokens in another "
            "order.",
            "Use a checkpoint with full attention, or the plain pipeline.",
        )
    needed(config, conditions)
    short(config, conditions)


def inputs(_config: Config, latents_BCFHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict:
    """Qwen's embeddings (B, tokens, width) and CLIP's (B, width); position_scale (B, 3), by which the pipeline divides
    places: 1 for images, else by the video's size. image_latents (B, C + 1, F, H, W): the kept frames, and their
    mask."""
    kept = [conditions[name] for name in ("image_latents",) if name in conditions]
    seen_BCFHW = torch.cat([latents_BCFHW, *kept], 1)
    text_BSD, device = conditions["encoder_hidden_states"], latents_BCFHW.device
    frames, height, width = latents_BCFHW.shape[2:]
    return {
        "hidden_states": seen_BCFHW.permute(0, 2, 3, 4, 1),
        "encoder_hidden_states": text_BSD,
        "timestep": timestep_B,
        "pooled_projections": conditions["pooled_projections"],
        "visual_rope_pos": [torch.arange(size, device=device) for size in (frames, height // 2, width // 2)],
        "text_rope_pos": torch.arange(text_BSD.shape[1], device=device),
        "scale_factor": conditions["position_scale"][0].float().unbind(),
    }


BLOCKS = single_stream(
    "visual_transformer_blocks",
    "visual_embed",
    "self_attention",
    stream="img",
    sides={"rope": (1, "img")},
    whole=("text_embed", "time_embed"),
    refused=("sparse_params",),
    chained=True,
)
register_adapter(
    Adapter(
        usual_spec(
            "Kandinsky5Transformer3DModel",
            BLOCKS,
            head=None,
            heads="text_transformer_blocks.0.self_attention.num_heads",
            head_dim="",
            width="config.model_dim",
        ),
        conditions=("encoder_hidden_states", "pooled_projections", "position_scale", "image_latents"),
        optional=("image_latents",),
        exact=("position_scale",),
        widths={"encoder_hidden_states": "in_text_dim", "pooled_projections": "in_text_dim2"},
        geometry=lambda config: (config["in_visual_dim"], tuple(config["patch_size"])),
        largest=lambda _config: (POSITIONS,) * 3,
        check=check,
        inputs=inputs,
        output=lambda _config, sample_BFHWC, _latents: sample_BFHWC.permute(0, 4, 1, 2, 3),
    )
)
