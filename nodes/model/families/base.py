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
Shapes = Mapping[str, torch.Size]
# A name in the file, alone or with (dim, start, length) of what to take of it, or with None and a change of it.
Table = dict[str, str | tuple]


@dataclass(frozen=True)
class Layout:
    """How a family lies in a single file.

    title: what people call the models. detected_as: ComfyUI's classes for them; what derives from those is another.
    config: what ComfyUI detected, and shapes, to the diffusers config. The shapes are the parameters' by diffusers'
    names, or without a table the tensors' by their names in the file.
    table: what ComfyUI detected, and the width (0: unknown), to diffusers' names in the original ones, where ComfyUI
    has such a table or nobody has; else diffusers' own converter is asked.
    naming: the diffusers config to that part of what ComfyUI detects which its tables of names ask for.
    other: what ComfyUI detected to the words for a variant that diffusers' class or our spec of it does not cover.
    """

    title: str
    detected_as: tuple[type, ...]
    config: Callable[[Detected, Shapes], dict[str, Any]]
    table: Callable[[Detected, int], Table] | None = None
    naming: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _config: {}
    other: Callable[[Detected], str | None] = lambda _detected: None


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
    layout: how it lies in a single file, if there are such files.
    """

    model_class: str
    build: Callable[[ModelDescription], comfy.model_base.BaseModel]
    conditions: Callable[[Any, torch.Tensor, torch.Tensor | None, dict[str, Any]], Tensors]
    scheduler: Callable[[Mapping[str, Any]], dict[str, Any]]
    linear_sigmas: bool = True
    visible: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _config: {}
    layout: Layout | None = None


_FAMILIES: dict[str, HostFamily] = {}


def register(family: HostFamily) -> HostFamily:
    """Adds a family to the registry."""
    _FAMILIES[family.model_class] = family
    return family


def families() -> list[HostFamily]:
    return list(_FAMILIES.values())


def family_for(model_class: str) -> HostFamily | None:
    """The host's side of a diffusers class, if there is one."""
    return _FAMILIES.get(model_class)


def detected_as(config_class: type) -> HostFamily | None:
    """The family of a model that ComfyUI detected as this class of its own."""
    return next((f for f in _FAMILIES.values() if f.layout and config_class in f.layout.detected_as), None)


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
