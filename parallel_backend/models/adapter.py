"""Adapts the inputs and outputs of diffusers' classes for scripts: latents and conditions in, a prediction out.

An adapter turns both into the class's own arguments and results. Its spec (`spec.py`) says how the class is sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import RequestError, UnknownModelError
from ..hooks import Hooks
from .spec import BlockList, ModelSpec, register

if TYPE_CHECKING:
    import torch
    from diffusers import ModelMixin

Config = Mapping[str, Any]
Tensors = dict[str, "torch.Tensor"]


def image_geometry(config: Config) -> tuple[int, tuple[int, ...]]:
    """Returns the latent channels, and the patch that becomes one token, over the latents' last dims."""
    patch = config["patch_size"]
    return config["in_channels"], (patch, patch) if isinstance(patch, int) else tuple(patch)


def usual_inputs(
    _config: Config, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors
) -> dict[str, Any]:
    """Passes latents, timestep and conditions on by the names that diffusers' classes have for them."""
    return {"hidden_states": latents, "timestep": timestep_B, **conditions}


@dataclass(frozen=True)
class Adapter:
    """The inputs and outputs of one diffusers class. README.md in this folder says how to fill the fields."""

    spec: ModelSpec
    # The request's tensors beside latents and timestep, batch first.
    conditions: tuple[str, ...]
    # (config, latents, timestep, conditions) to the keyword arguments of the model's forward. Latents are
    # (B, C, H, W), or (B, C, F, H, W) for video.
    inputs: Callable[[Config, torch.Tensor, torch.Tensor, Tensors], dict[str, Any]] = usual_inputs
    # (config, the model's sample, latents) to the prediction in the shape of the latents.
    output: Callable[[Config, torch.Tensor, torch.Tensor], torch.Tensor] = lambda _config, sample, _latents: sample
    # Conditions that may be absent.
    optional: tuple[str, ...] = ()
    # Conditions that are latents of any size. Their tokens follow the latents' tokens in the image's stream.
    appended: tuple[str, ...] = ()
    # Conditions that are not cast to the model's dtype.
    exact: tuple[str, ...] = ()
    # The config's key for a condition's last dim.
    widths: Mapping[str, str] = field(default_factory=dict)
    # Config to latent channels and patch.
    geometry: Callable[[Config], tuple[int, tuple[int, ...]]] = image_geometry
    # Config to the most patches along each of the latents' last dims, if the model's positions are limited.
    largest: Callable[[Config], tuple[int, ...]] | None = None
    # Raises RequestError for conditions that the model cannot take. It sees the whole batch, on every rank.
    check: Callable[[Config, Tensors], None] | None = None
    # `inputs`, and mostly the model's forward, take a diffusers scheduler's timestep times this.
    timestep_scale: float = 1.0
    # Whether `inputs` takes a timestep for each frame too, (B, F).
    timestep_by_frame: bool = False
    # Whether the class takes a video as (B, F, C, H, W).
    frames_first: bool = False
    # By the path in a block, what takes the class's attention processor and returns one of ours in its place.
    processors: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    # Adds what else the class needs to the loaded model, by removable hooks. Blocks of other stages are not there.
    prepare: Callable[[ModelMixin, Hooks], None] | None = None

    @property
    def model_class(self) -> str:
        """The name of the diffusers class."""
        return self.spec.model_class


# Blocks in which image and text attend together, as several classes have them. Others take both in one tensor.
JOINT = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("txt", "img"),
    attention={"attn": "txt+img"},
    whole=("temb", "joint_attention_kwargs"),
    chained=True,
)
JOINED = replace(JOINT, path="single_transformer_blocks", tokens={"hidden_states": "txt+img"}, returns="txt+img")
# The last layer of most classes, up to which the model works token by token.
PROJ_OUT = BlockList("proj_out", tokens={"input": "img"}, returns="img", chained=True)


def usual_spec(model_class: str, *blocks: BlockList, head: BlockList | None = PROJ_OUT, **others: Any) -> ModelSpec:
    """Returns the spec of a class with the names that most of diffusers' classes have."""
    usual = {"heads": "config.num_attention_heads", "head_dim": "config.attention_head_dim", "image": "img"}
    return ModelSpec(model_class, blocks, head=head, **{**usual, **others})


def needs(**rules: Callable[[Config], bool | int]) -> Callable[[Config, Tensors], None]:
    """Returns a `check` for optional conditions. The config says which of them a model needs; no others may be given. A
    rule says whether the condition is needed, or how long its dim 1 must be."""

    def check(config: Config, conditions: Tensors) -> None:
        for name, rule in rules.items():
            wanted, value = rule(config), conditions.get(name)
            if (value is not None) != bool(wanted):
                if wanted:
                    raise RequestError(f"This model needs the condition {name}; it was not given.")
                raise RequestError(f"This model takes no {name}.", "Leave it out, or load the variant made for it.")
            if value is not None and wanted is not True and value.shape[1:2] != (wanted,):
                raise RequestError(f"{name} has shape {tuple(value.shape)}; this model needs {wanted} on dim 1.")

    return check


def text_within(limit: Callable[[Config], int]) -> Callable[[Config, Tensors], None]:
    """Returns a `check` for models with positions for a limited number of text tokens."""

    def check(config: Config, conditions: Tensors) -> None:
        tokens, most = conditions["encoder_hidden_states"].shape[1], limit(config)
        if tokens > most:
            raise RequestError(f"The text has {tokens} tokens, and this model takes {most}.", "Shorten the prompt.")

    return check


_ADAPTERS: dict[str, Adapter] = {}


def register_adapter(adapter: Adapter) -> None:
    """Adds a diffusers class to the registries."""
    _ADAPTERS[adapter.model_class] = adapter
    register(adapter.spec)


def model_classes() -> list[str]:
    """Returns the diffusers classes of transformers that have an adapter."""
    return sorted(name for name, adapter in _ADAPTERS.items() if not adapter.spec.bands)


def adapter_for(model_class: str) -> Adapter:
    """Returns the adapter of a diffusers class. Raises UnknownModelError if there is none."""
    if model_class not in _ADAPTERS:
        raise UnknownModelError(
            f"No spec for the transformer class {model_class}; supported are {', '.join(model_classes())}.",
            "The manual parallel_backend/models/README.md says how to add one.",
        )
    return _ADAPTERS[model_class]
