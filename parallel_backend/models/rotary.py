"""Keeps rotary embeddings on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from diffusers import ModelMixin

    from ..hooks import Hooks


def rotary_on_device(path: str) -> Callable[[ModelMixin, Hooks], None]:
    """Returns a `prepare` for a model whose submodule at this path makes the rotary embedding on the CPU, from the
    latents. It is moved to their device once per forward. Otherwise each block would move it and make the host wait."""

    def bring(_module: torch.nn.Module, args: tuple, rotary: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (latents,) = args
        return tuple(part.to(latents.device) for part in rotary)

    def prepare(model: ModelMixin, hooks: Hooks) -> None:
        hooks.after(model.get_submodule(path), bring)

    return prepare
