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
class SideInput:
    """A per-token argument of every block, such as rotary embeddings: a tensor, or a tuple of them.

    dim: where its tokens run. streams: the token streams that it covers, in order.
    """

    name: str
    dim: int
    streams: tuple[str, ...]


def image_geometry(config: Config) -> tuple[int, tuple[int, ...]]:
    """Latent channels, and the patch that becomes one token, over the latents' last dims."""
    patch = config["patch_size"]
    return config["in_channels"], (patch, patch) if isinstance(patch, int) else tuple(patch)


@dataclass(frozen=True)
class ModelSpec:
    """A family of transformers, seen from outside.

    model_class: the diffusers class.
    blocks: its block lists, in the order in which they run.
    streams: arguments of a block's forward that carry tokens (B, S, width); the first is the one the head reads.
    returned: the streams in the order in which a block returns them, if it is another order.
    self_attention: the block's submodules whose attention runs over sharded tokens, and the streams in each.
    side_inputs: per-token arguments of the blocks.
    conditions: the tensors, batch first, that a request brings beside latents and timestep.
    optional: those of them that may be absent.
    geometry: config to latent channels and patch.
    inputs: (config, latents, timestep, conditions) to the keyword arguments of the model's forward. Latents are
    (B, C, H, W), or (B, C, F, H, W) for video.
    output: (config, the model's sample, latents) to the prediction in the shape of the latents.
    check: raises RequestError for conditions that the model cannot take; sees the whole batch, on every rank.
    prepare: installs what the family needs beyond this, once, on the loaded model.
    """

    model_class: str
    blocks: tuple[str, ...]
    streams: tuple[str, ...]
    self_attention: Mapping[str, tuple[str, ...]]
    conditions: tuple[str, ...]
    inputs: Callable[[Config, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]], dict[str, Any]]
    output: Callable[[Config, torch.Tensor, torch.Tensor], torch.Tensor]
    returned: tuple[str, ...] = ()
    side_inputs: tuple[SideInput, ...] = ()
    optional: tuple[str, ...] = ()
    geometry: Callable[[Config], tuple[int, tuple[int, ...]]] = image_geometry
    check: Callable[[Config, dict[str, torch.Tensor]], None] | None = None
    prepare: Callable[[torch.nn.Module], None] | None = None

    def __post_init__(self) -> None:
        if not self.returned:
            object.__setattr__(self, "returned", self.streams)


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
