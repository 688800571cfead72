"""Brings the predictions of a step's calls to all ranks, because the pipeline's own loop goes on on each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..groups.calls import NUMBERS, Part, allocate_output, describe_output, join_rows
from ..groups.mesh import Axis, Mesh
from .arguments import ModelCall


class Results:
    """Joins the rows of all ranks. A rank without rows, or of another stage, does not know the form of a prediction.
    It is told the form once for the arguments' shapes and dtypes, and for each dtype of autocast.

    forms: by axis, and what tells forms apart, a row of a prediction on the meta device.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.forms: dict[tuple, torch.Tensor] = {}

    def join(
        self, outputs: Sequence[torch.Tensor | None], parts: Sequence[Part], calls: Sequence[ModelCall]
    ) -> list[torch.Tensor]:
        """Returns each call's prediction, on every rank alike. outputs: of this rank's parts; None on a stage that is
        not the last. Every rank calls it."""
        rows, stages = self.mesh["batch"], self.mesh["pipefusion"]
        own, found = iter(outputs), [[] for _ in calls]
        is_last = stages.index == stages.degree - 1
        for part in parts:
            mine = next(own) if part.group == rows.index else None
            if is_last:
                size = part.rows.own_size(calls[part.call].size)
                found[part.call].append(self.spread(mine, size, calls[part.call], rows, part.group))
        joined = [join_rows(each) if each else None for each in found]
        return [
            self.spread(whole, call.size, call, stages, stages.degree - 1)
            for whole, call in zip(joined, calls, strict=True)
        ]

    def spread(self, value: torch.Tensor | None, size: int, call: ModelCall, axis: Axis, source: int) -> torch.Tensor:
        """Returns on every rank of an axis what the rank at `source` has. size: its rows."""
        if axis.degree == 1:
            assert value is not None
            return value
        kind = self.mesh.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        rank, key = axis.global_rank(source), (axis.degree, id(axis.group), cast, *call.shapes)
        with axis.timeline.communication("broadcast"):
            if key not in self.forms:
                self.forms[key] = self.tell_form(value, rank, axis.group)
            form = self.forms[key]
            if value is None:
                value = torch.empty([size, *form.shape[1:]], dtype=form.dtype, device=self.mesh.device)
            value = value.contiguous()
            dist.broadcast(value, rank, group=axis.group)
        return value

    def tell_form(self, value: torch.Tensor | None, rank: int, group: Any) -> torch.Tensor:
        """Returns on every rank of a group the form of the tensor that one has."""
        device = self.mesh.device
        numbers = torch.tensor([0] * NUMBERS if value is None else describe_output(value), device=device)
        dist.broadcast(numbers, rank, group=group)
        form = allocate_output(numbers.tolist(), torch.device("meta"))
        assert isinstance(form, torch.Tensor)
        return form
