"""The form of a table of names for one diffusers class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Config = Mapping[str, Any]
Rows = Mapping[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class Names:
    """How ComfyUI names the weights of a diffusers class.

    rows: ComfyUI's name of a layer or parameter, to diffusers' name. ComfyUI joins the layers of a tuple into one,
    along dim 0. `*` is the number of a block.
    blocks: diffusers' lists of blocks, each with its count: a field of the config, or a function of the config.
    swapped: ComfyUI's names of weights whose halves diffusers has in the other order: scale before shift.
    optional: patterns of diffusers' names that only some models of the class have.
    unused: patterns of names that published folders have and diffusers does not read.
    own_map: the function in `comfy.utils` with ComfyUI's own map of the names, and the sizes it needs from the config.
    per_channel: patterns of ComfyUI's names whose tensors have the shape (1, C, 1, 1).
    constants: ComfyUI's names of tensors that diffusers' class computes, to their values.
    markers: ComfyUI's name of an empty tensor that turns a setting on, to the field of the config.
    settings: fields of ComfyUI's config that it does not find in the weights, to a field of diffusers' config, or to
    another value or a function of that config. by_pipeline: such fields with their values, for one class of pipelines.
    fixed: fields of diffusers' config that ComfyUI's class has no setting for, to the value it computes with, or to a
    function of the config that gives it.
    """

    rows: Rows = field(default_factory=dict)
    blocks: Mapping[str, str | Callable[[Config], int]] = field(default_factory=dict)
    swapped: frozenset[str] = frozenset()
    optional: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    own_map: tuple[str, Callable[[Config], dict[str, int]]] | None = None
    per_channel: tuple[str, ...] = ()
    constants: Mapping[str, list[list[float]]] = field(default_factory=dict)
    markers: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_pipeline: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)


def width_of(config: Config) -> int:
    """Returns the number of features of a token."""
    return int(config["num_attention_heads"] * config["attention_head_dim"])


def find_value(rule: Any, config: Config) -> Any:
    """Returns a fixed value, or what a function finds in the config."""
    return rule(config) if callable(rule) else rule


def same(names: str) -> dict[str, str]:
    """Returns rows, or settings, of names that both have alike. names: separated by spaces."""
    return {name: name for name in names.split()}


def add_prefix(comfyui: str, diffusers: str, rows: Rows) -> dict[str, str | tuple[str, ...]]:
    """Returns the rows of a module with their full names."""
    return {
        f"{comfyui}{own}": f"{diffusers}{theirs}"
        if isinstance(theirs, str)
        else tuple(f"{diffusers}{name}" for name in theirs)
        for own, theirs in rows.items()
    }
