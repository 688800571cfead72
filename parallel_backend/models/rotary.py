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

    patch, patch_t = config["patch_size"], config.get("patch_size_t")
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


def rotary_of_axes(
    config: Config, latents_BCFHW: torch.Tensor
) -> tuple[tuple[tuple[torch.Tensor, torch.Tensor], ...], tuple[torch.Tensor, ...]]:
    """Returns cosines and sines (positions, a third of the head dim) for frames, rows and columns, and each token's
    position in these tables, (1, tokens), as in Allegro."""
    import torch
    from diffusers.models.embeddings import get_3d_rotary_pos_embed_allegro

    frames, rows, columns = latents_BCFHW.shape[2], *(size // config["patch_size"] for size in latents_BCFHW.shape[-2:])
    scales = config["interpolation_scale_t"], config["interpolation_scale_h"], config["interpolation_scale_w"]
    box, grid, device = ((0, 0), (rows, columns)), (rows, columns), latents_BCFHW.device
    made: Any = get_3d_rotary_pos_embed_allegro(config["attention_head_dim"], box, grid, frames, scales, device=device)
    places = torch.cartesian_prod(*(places.long() for places in made[3:]))
    return made[:3], tuple(places.T[:, None])


def rotary_on_device(path: str) -> Callable[[ModelMixin, Hooks], None]:
    """Returns a `prepare` for a model whose submodule at this path makes the rotary embedding on the CPU, from the
    latents. It is moved to their device once per forward. Otherwise each block would move it and make the host wait."""

    def bring(_module: torch.nn.Module, args: tuple, rotary: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (latents,) = args
        return tuple(part.to(latents.device) for part in rotary)

    def prepare(model: ModelMixin, hooks: Hooks) -> None:
        hooks.after(model.get_submodule(path), bring)

    return prepare
