"""What the nodes must know of a model family, and the registry that finds it: the host's side of the engine's specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import comfy.model_base
import torch

from ...errors import Refused
from ..model_files import ModelDescription

Tensors = dict[str, torch.Tensor]
Detected = Mapping[str, Any]
# A name in the file, alone or with (dim, start, length) of what to take of it, or with None and a change of it.
Table = dict[str, str | tuple]


@dataclass(frozen=True)
class HostFamily:
    """A family as ComfyUI's side of a request needs it.

    model_class: diffusers'.
    build: a model to a BaseModel without diffusion_model, so that latent format, sampling and conditioning are
    ComfyUI's own.
    conditions: (model, latents, context, the other arguments of the diffusion model) to the engine's conditions; takes
    out of the last what it uses.
    scheduler: the model's config to the diffusers scheduler config, for a model that brings none.
    linear_sigmas: whether the family's pipeline hands its flow-matching scheduler sigmas from 1 to 1 / steps.
    visible: the model's config to what ComfyUI's BaseModel reads of its diffusion model, by attribute.
    table: what ComfyUI detects, and the width (0: unknown), to diffusers' names in ComfyUI's, where ComfyUI has such a
    table or nobody has. naming: the diffusers config to that part of what ComfyUI detects which the table asks for.
    """

    model_class: str
    build: Callable[[ModelDescription], comfy.model_base.BaseModel]
    conditions: Callable[[Any, torch.Tensor, torch.Tensor | None, dict[str, Any]], Tensors]
    scheduler: Callable[[Mapping[str, Any]], dict[str, Any]]
    linear_sigmas: bool = True
    visible: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _config: {}
    table: Callable[[Detected, int], Table] | None = None
    naming: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _config: {}


_FAMILIES: dict[str, HostFamily] = {}


def register(family: HostFamily) -> HostFamily:
    """Adds a family to the registry."""
    _FAMILIES[family.model_class] = family
    return family


def family_for(model_class: str) -> HostFamily | None:
    """The host's side of a diffusers class, if there is one."""
    return _FAMILIES.get(model_class)


class Shape:
    """Stands for a module of ComfyUI's whose weight has this shape, where a BaseModel asks for that."""

    def __init__(self, *shape: int) -> None:
        self.weight = torch.empty(shape, device="meta")


def weightless(**unet_config: object) -> dict[str, object]:
    """A config of ComfyUI's whose model is built without its diffusion model."""
    return {**unet_config, "disable_unet_model_creation": True}


def width(config: Mapping[str, Any]) -> int:
    return config["num_attention_heads"] * config["attention_head_dim"]


def flow_euler(**shift: object) -> dict[str, object]:
    """The scheduler config of the flow-matching families."""
    return {"_class_name": "FlowMatchEulerDiscreteScheduler", **shift}


def text_of(context: torch.Tensor | None, family: str, encoder: str) -> torch.Tensor:
    """The embeddings of the text. Raises Refused where there are none."""
    if context is None:
        raise Refused(f"{family} needs a text conditioning.", f"Connect a CLIP Text Encode node with {encoder}.")
    return context


def wanted_guidance(guidance: torch.Tensor | None, family: str) -> torch.Tensor:
    """The guidance scale of a model that is conditioned on it. Raises Refused where a node has taken it away."""
    if guidance is None:
        raise Refused(f"The parallel {family} always takes a guidance scale.", "Remove the node that disables it.")
    return guidance


def moved(extra: dict[str, Any], **names: str) -> Tensors:
    """Those of ComfyUI's arguments that are there, taken out, by the engine's names: engine's=ComfyUI's."""
    return {name: extra.pop(own) for name, own in names.items() if own in extra}


def whole(modules: Mapping[str, str]) -> Table:
    """The weights and biases of modules, which the original names alike: diffusers' names to the original ones."""
    parts = ("weight", "bias")
    return {f"{name}.{part}": f"{original}.{part}" for name, original in modules.items() for part in parts}


def fused(modules: Sequence[str], original: str, rows: int) -> Table:
    """The weights and biases of modules that are one module in the original, each with so many of its rows, in turn."""
    return {
        f"{name}.{part}": (f"{original}.{part}", (0, index * rows, rows))
        for index, name in enumerate(modules)
        for part in ("weight", "bias")
    }
