"""The diffusers classes that `parallelize` takes: the spec of each, and what else it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UnknownModelError
from .spec import BlockList, ModelSpec, register


@dataclass(frozen=True)
class Adapter:
    """One diffusers class. README.md in this folder says how to fill the fields."""

    spec: ModelSpec
    # Whether the class takes a video as (B, F, C, H, W).
    frames_first: bool = False
    # By the path in a block, what takes the class's attention processor and returns one of ours in its place.
    processors: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    # The path of the submodule that makes the rotary embedding, if it does so on the CPU. This is moved to the latents'
    # device once per forward. Otherwise each block would move it and make the host wait.
    rotary_on_cpu: str = ""


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
    """Returns the spec of a class with the head and the image's stream that most of diffusers' classes have."""
    return ModelSpec(model_class, blocks, head=head, **{"image": "img", **others})


_ADAPTERS: dict[str, Adapter] = {}


def register_adapter(spec: ModelSpec, **others: Any) -> None:
    """Adds a diffusers class to the registries. others: fields of its Adapter."""
    _ADAPTERS[spec.model_class] = Adapter(register(spec), **others)


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
