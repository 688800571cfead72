"""The names that ComfyUI's own module gives a model's parameters, by which its nodes address them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .families import Table, family_for
from .model_files import ModelDescription

Shapes = Mapping[str, torch.Size]


class Piece(NamedTuple):
    """`count` rows that are in one of ComfyUI's tensors from `host_row` on, and in a parameter of diffusers' from `row`
    on."""

    parameter: str
    row: int
    host_row: int
    count: int


@dataclass(frozen=True)
class HostNames:
    """shapes: of ComfyUI's tensors, by name. pieces: where their rows are. detected: what ComfyUI would have to detect
    of the model for its tables to give these names."""

    shapes: dict[str, tuple[int, ...]]
    pieces: dict[str, list[Piece]]
    detected: dict[str, Any]

    @property
    def modules(self) -> set[str]:
        """What the names begin with."""
        return {name.partition(".")[0] for name in self.shapes}


def host_names(model: ModelDescription) -> HostNames:
    """ComfyUI's names for a model's parameters, or diffusers' own where ComfyUI has none for it.

    The latter also where the model has other proportions than those published, for which ComfyUI's tables are.
    """
    shapes = {name: shape for name, shape in model.shapes.items() if shape}
    family = family_for(model.model_class)
    if family and family.table:
        detected = family.naming(model.config)
        pieces = host_pieces(family.table(detected, detected.get("hidden_size", 0)), shapes)
        if pieces:
            return HostNames(whole_shapes(pieces, shapes), pieces, detected)
    pieces = {name: [Piece(name, 0, 0, shape[0])] for name, shape in shapes.items()}
    return HostNames({name: tuple(shape) for name, shape in shapes.items()}, pieces, {})


def host_pieces(table: Table, parameters: Shapes) -> dict[str, list[Piece]]:
    """The table's tensors in pieces; none if the parameters are not of the sizes that it says.

    The only change of a tensor in ComfyUI's tables is `swap_scale_shift`.
    """
    pieces: dict[str, list[Piece]] = {}
    for parameter, entry in table.items():
        if parameter not in parameters:
            continue
        name, cut, *change = (entry, None) if isinstance(entry, str) else entry
        rows = parameters[parameter][0]
        _dim, start, count = cut or (0, 0, rows)
        if count != rows:
            return {}
        half = rows // 2
        swapped = [Piece(parameter, 0, half, half), Piece(parameter, half, 0, half)]
        pieces.setdefault(name, []).extend(swapped if change else [Piece(parameter, 0, start, rows)])
    return pieces


def whole_shapes(pieces: Mapping[str, list[Piece]], parameters: Shapes) -> dict[str, tuple[int, ...]]:
    return {
        name: (max(piece.host_row + piece.count for piece in found), *parameters[found[0].parameter][1:])
        for name, found in pieces.items()
    }
