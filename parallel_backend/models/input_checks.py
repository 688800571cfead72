"""Checks a request to a diffusers class before a forward, on every rank alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import RequestError
from .adapter import Adapter, Config, Tensors

if TYPE_CHECKING:
    import torch


def check_inputs(
    adapter: Adapter, config: Config, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors, patches: int
) -> None:
    """Raises RequestError for input that the model cannot take. It depends on the request alone, so all ranks agree.
    patches: PipeFusion's."""
    channels, patch = adapter.geometry(config)
    check_shape(adapter, channels, patch, latents)
    if timestep_B.ndim != 1 and not (adapter.timestep_by_frame and timestep_B.shape[1:] == latents.shape[2:3]):
        raise RequestError(
            f"The timesteps have the shape {tuple(timestep_B.shape)}: parts of the latent have levels of noise of "
            f"their own, which {adapter.model_class} cannot honour here.",
            "Remove the noise mask.",
        )
    check_appended(adapter, channels, patch, conditions, patches)
    check_size(adapter, config, patch, latents)
    check_conditions(adapter, config, conditions)
    for name, value in {"timestep": timestep_B, **conditions}.items():
        if len(value) != len(latents):
            raise RequestError(f"{name} is for a batch of {len(value)}, the latent for one of {len(latents)}.")
    for name, value in {"latent": latents, "timestep": timestep_B, **conditions}.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise RequestError(f"The {name} holds NaN or infinite values; the node that made it went wrong.")
    if adapter.check:
        adapter.check(config, conditions)


def check_shape(adapter: Adapter, channels: int, patch: tuple[int, ...], latents: torch.Tensor) -> None:
    """Raises RequestError for latents with other dims or channels, or that cannot be split into patches."""
    if latents.ndim != 2 + len(patch) or latents.shape[1] != channels:
        sizes = "(batch, {}, height, width)" if len(patch) == 2 else "(batch, {}, frames, height, width)"
        raise RequestError(
            f"The latent has shape {tuple(latents.shape)}, and {adapter.model_class} here takes "
            f"{sizes.format(channels)}.",
            "Use an empty-latent node or a VAE made for this model.",
        )
    if any(size % side or not size for size, side in zip(latents.shape[2:], patch, strict=True)):
        shape, sides = ("×".join(map(str, sizes)) for sizes in (latents.shape[2:], patch))
        dims = "frames×height×width" if len(patch) == 3 else "height×width"
        raise RequestError(
            f"The latent measures {shape} ({dims}), and the model works on patches of {sides}.",
            "Use sizes that are multiples of these, in latent pixels.",
        )


def check_appended(adapter: Adapter, channels: int, patch: tuple[int, ...], conditions: Tensors, patches: int) -> None:
    """Raises RequestError for reference latents with a wrong shape, or together with PipeFusion."""
    for name, shape in ((name, conditions[name].shape) for name in adapter.appended if name in conditions):
        if patches > 1:
            raise RequestError(
                f"PipeFusion's patches are of the image alone, and {name} adds tokens to it.",
                "Use pipefusion=1 and patches=1, and ulysses, ring, cfg or dp in their place.",
            )
        sizes = zip(shape[2:], patch, strict=False)
        if len(shape) != 2 + len(patch) or shape[1] != channels or any(size % side for size, side in sizes):
            raise RequestError(
                f"{name} has shape {tuple(shape)}; this model takes {channels} channels, in patches of "
                f"{'×'.join(map(str, patch))} latent pixels."
            )


def check_size(adapter: Adapter, config: Config, patch: tuple[int, ...], latents: torch.Tensor) -> None:
    """Raises RequestError for latents larger than the model's positions."""
    bound = adapter.largest(config) if adapter.largest else latents.shape[2:]
    largest = [most * side for most, side in zip(bound, patch, strict=True)]
    if any(size > most for size, most in zip(latents.shape[2:], largest, strict=True)):
        shape, most = ("×".join(map(str, sizes)) for sizes in (latents.shape[2:], largest))
        raise RequestError(
            f"The latent measures {shape} (height×width), and this {adapter.model_class} has positions for "
            f"{most} at most, in latent pixels.",
            "Use a smaller size, and upscale the image.",
        )


def check_conditions(adapter: Adapter, config: Config, conditions: Tensors) -> None:
    """Raises RequestError for conditions that are missing, unknown, or from another text encoder."""
    required = [name for name in adapter.conditions if name not in adapter.optional]
    missing = ", ".join(name for name in required if name not in conditions)
    unknown = ", ".join(name for name in conditions if name not in adapter.conditions)
    if missing or unknown:
        wrong = f"needs the condition {missing}; it was not given" if missing else f"takes no condition {unknown}"
        raise RequestError(
            f"{adapter.model_class} {wrong}.",
            f"It needs {', '.join(required) or 'no condition'}"
            + (f"; some models take {', '.join(adapter.optional)}." if adapter.optional else "."),
        )
    for name, key in adapter.widths.items():
        width = config[key] if name in conditions else None
        if width and conditions[name].shape[-1] != width:
            raise RequestError(
                f"{name} has shape {tuple(conditions[name].shape)}, and this {adapter.model_class} takes a width of "
                f"{width}.",
                "Encode the prompt with the text encoder that belongs to the model.",
            )
