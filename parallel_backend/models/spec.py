"""What the engine must know of a model family, and the registry that finds it by the diffusers class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UnknownModelError

if TYPE_CHECKING:
    import torch

Config = Mapping[str, Any]


@dataclass(frozen=True)
class ModelSpec:
    """A family of transformers, seen from outside.

    model_class: the diffusers class.
    blocks: its block lists, in the order in which they run.
    streams: arguments of a block's forward that carry tokens (B, S, width), in the order in which it returns them.
    self_attention: the block's submodules whose attention runs over the sharded tokens.
    conditions: the tensors, batch first, that a request brings beside latents and timestep.
    inputs: (config, latents, timestep, conditions) to the keyword arguments of the model's forward.
    output: (config, the model's sample, latents) to the prediction in the shape of the latents.
    check: raises RequestError for conditions that the model cannot take; sees the whole batch, on every rank.
    prepare: installs what the family needs beyond this, once, on the loaded model.
    """

    model_class: str
    blocks: tuple[str, ...]
    streams: tuple[str, ...]
    self_attention: tuple[str, ...]
    conditions: tuple[str, ...]
    inputs: Callable[[Config, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]], dict[str, Any]]
    output: Callable[[Config, torch.Tensor, torch.Tensor], torch.Tensor]
    check: Callable[[Config, dict[str, torch.Tensor]], None] | None = None
    prepare: Callable[[torch.nn.Module], None] | None = None


_SPECS: dict[str, ModelSpec] = {}


def register(spec: ModelSpec) -> ModelSpec:
    """Adds a family to the registry."""
    _SPECS[spec.model_class] = spec
    return spec


def spec_for(model_class: str) -> ModelSpec:
    """The spec of a diffusers class. Raises UnknownModelError where there is none."""
    if model_class not in _SPECS:
        raise UnknownModelError(
            f"No spec for the transformer class {model_class}; supported are {', '.join(sorted(_SPECS))}. "
            "parallel_backend/models/README.md says how to add one."
        )
    return _SPECS[model_class]
