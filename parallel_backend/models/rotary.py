"""Rotary embeddings: for the families whose pipelines compute them outside of the model, by diffusers' own functions;
and at their places, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from diffusers import ModelMixin

    from ..hooks import Hooks
    from .adapter import Config


Box = tuple[tuple[float, float], tuple[float, float]]


def centred_box(grid: tuple[int, int], base: tuple[int, int]) -> Box:
    """Returns where a token grid (rows, columns) lies on the model's training grid: scaled to fit, and centred. Returns
    its (top, left) and (bottom, right), in whole tokens of the base grid."""
    scale = min(wanted / size for wanted, size in zip(base, grid, strict=True))
    height, width = (round(scale * size) for size in grid)
    top, left = round((base[0] - height) / 2), round((base[1] - width) / 2)
    return (top, left), (top + height, left + width)


def rotary_2d(config: Config, latents_BCHW: torch.Tensor, base: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosines and sines (tokens, head dim), scaled to a base grid of `base` × `base` tokens, as in
    HunyuanDiT."""
    from diffusers.models.embeddings import get_2d_rotary_pos_embed

    rows, columns = (size // config["patch_size"] for size in latents_BCHW.shape[-2:])
    box = centred_box((rows, columns), (base, base))
    head_dim, device = config["attention_head_dim"], latents_BCHW.device
    cosines_and_sines: Any = get_2d_rotary_pos_embed(head_dim, box, (rows, columns), device=device)
    return cosines_and_sines


def rotary_3d(config: Config, latents_BCFHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosines and sines (tokens, head dim) as in CogVideoX: scaled to the training size in 1.0, cropped in
    1.5."""
    from diffusers.models.embeddings import get_3d_rotary_pos_embed

    patch, patch_t = config["patch_size"], config["patch_size_t"]
    frames, rows, columns = latents_BCFHW.shape[2] // (patch_t or 1), *(s // patch for s in latents_BCFHW.shape[-2:])
    base = config["sample_height"] // patch, config["sample_width"] // patch
    box = centred_box((rows, columns), base)
    cosines_and_sines: Any = get_3d_rotary_pos_embed(
        config["attention_head_dim"],
        box,
        (rows, columns),
        frames,
        grid_type="slice" if patch_t else "linspace",
        max_size=(max(base[0], rows), max(base[1], columns)),
        device=latents_BCFHW.device,
    )
    return cosines_and_sines


def rotary_on_device(path: str) -> Callable[[ModelMixin, Hooks], None]:
    """Returns a `prepare` for a model whose submodule at this path makes the rotary embedding on the CPU, from the
    latents. It is moved to their device once per forward. Otherwise each block would move it and make the host wait."""

    def bring(_module: torch.nn.Module, args: tuple, rotary: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (latents,) = args
        return tuple(part.to(latents.device) for part in rotary)

    def prepare(model: ModelMixin, hooks: Hooks) -> None:
        hooks.after(model.get_submodule(path), bring)

    return prepare


class Placed(list):
    """Image shapes for Qwen-Image's forward, with the places (S, 3) of the image tokens and the text tokens."""

    def __init__(self, shapes: list, image_ids: torch.Tensor | None = None, text_ids: torch.Tensor | None = None):
        super().__init__(shapes)
        self.ids = None if image_ids is None or text_ids is None else (image_ids, text_ids)
        self.clean: bool | None = None  # whether references are free of noise; None means the config's choice


def place_by_ids(model: ModelMixin, hooks: Hooks) -> None:
    """Lets Qwen-Image's rotary embedding take the places of tokens from `Placed`, if it has them."""
    import torch

    rope = model.pos_embed
    compute = rope.forward

    def frequencies(ids_S3: torch.Tensor, length: int, device: torch.device) -> torch.Tensor:
        padded_S3 = torch.nn.functional.pad(ids_S3.cpu(), (0, 0, 0, length - len(ids_S3)))
        axes = zip(padded_S3.unbind(1), rope.axes_dim, strict=True)
        return torch.cat([rope.rope_params(ids_S, dim, rope.theta) for ids_S, dim in axes], 1).to(device)

    def forward(shapes: list, device: Any = None, max_txt_seq_len: Any = None) -> tuple:
        if not isinstance(shapes, Placed) or shapes.ids is None:
            return compute(shapes, device=device, max_txt_seq_len=max_txt_seq_len)
        image_ids, text_ids = shapes.ids
        return frequencies(image_ids, len(image_ids), device), frequencies(text_ids, max_txt_seq_len, device)

    hooks.replace(rope, "forward", forward)
