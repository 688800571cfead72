"""What a table of names says of one class of diffusers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Config = Mapping[str, Any]
Rows = Mapping[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class Names:
    """How ComfyUI names the weights of a diffusers class.

    rows: ComfyUI's name of a layer, or of a parameter, to diffusers' name. A tuple names layers whose weights ComfyUI
    has in one, below each other. `*` is the number of a block. blocks: diffusers' lists of blocks, each with the field
    of the config that says how many there are, or what counts them by it.
    swapped: names of ComfyUI's whose weights diffusers has with the halves exchanged: scale before shift.
    optional: patterns of diffusers' names that only some models of the class have.
    unused: patterns of names that published folders have, and that diffusers leaves unread.
    own_map: the function in `comfy.utils` that has ComfyUI's own map of the names, and what it asks of the config.
    per_channel: patterns of ComfyUI's names whose tensors have a dim of channels between others of 1: (1, C, 1, 1).
    constants: ComfyUI's names of tensors that diffusers' class computes, to their values.
    markers: ComfyUI's name of an empty tensor that tells ComfyUI of a setting, to the field of the config.
    settings: fields of ComfyUI's config that it does not find in the weights, to fields of diffusers' config, or to
    what makes it of that. by_pipeline: the same for one class of pipelines, as values.
    fixed: fields of diffusers' config that ComfyUI's class has no setting for, to what makes the value that it computes
    with of the config.
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
    settings: Mapping[str, str | Callable[[Config], Any]] = field(default_factory=dict)
    by_pipeline: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fixed: Mapping[str, Callable[[Config], Any]] = field(default_factory=dict)


def width_of(config: Config) -> int:
    """How many features a token has."""
    return int(config["num_attention_heads"] * config["attention_head_dim"])


def always(value: Any) -> Callable[[Config], Any]:
    """The same for each model of the class."""
    return lambda _config: value


def add_prefix(comfyui: str, diffusers: str, rows: Rows) -> dict[str, str | tuple[str, ...]]:
    """The rows of a module, by their full names."""
    return {
        f"{comfyui}{own}": f"{diffusers}{theirs}"
        if isinstance(theirs, str)
        else tuple(f"{diffusers}{name}" for name in theirs)
        for own, theirs in rows.items()
    }
