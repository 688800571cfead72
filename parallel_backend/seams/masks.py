"""Attention masks of models that are called from outside, where blocks make them of the tokens that they have."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..models.comfyui.spec import BlockList, names
from .attention import Attend, ParallelAttention
from .streams import Names, StreamLayout


def attend_by(
    attention: ParallelAttention, layout: StreamLayout, module: torch.nn.Module, blocks: BlockList, path: str, call: str
) -> Attend:
    """A call's attention from streams, and to others where its spec names them, under the mask that the whole model
    would have."""
    streams, _, seen = call.partition("|")
    attend = partial(attention, module, names(streams), seen=names(seen) if seen else ())
    if path in blocks.local_masks:
        return partial(with_whole_mask, attend, layout, names(seen or streams))
    reach = getattr(module, blocks.windows[path]) if path in blocks.windows else None
    return attend if reach is None else partial(within_window, attend, layout, names(streams), reach)


def with_whole_mask(
    attend: Attend,
    layout: StreamLayout,
    seen: Names,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    **more: Any,
) -> torch.Tensor:
    """Attention whose mask is of this rank's keys; those of the others come with theirs."""
    if attn_mask is not None:
        attn_mask = layout.gather(layout.fill(attn_mask, seen, -1), seen, -1)
    return attend(query, key, value, attn_mask, **more)


def within_window(
    attend: Attend,
    layout: StreamLayout,
    streams: Names,
    reach: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    **more: Any,
) -> torch.Tensor:
    """Attention of tokens to those that are no further than `reach` away, whatever mask there was of local ones."""
    sides, name = layout.forward.sides, f"window.{streams}.{reach}"
    if name not in sides:
        places = torch.arange(layout.total(streams), device=query.device)
        sides[name] = (reach, ((places[:, None] - places).abs() <= reach)[None, None])
    return attend(query, key, value, sides[name][1], **more)
