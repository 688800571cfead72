"""Attention of models that are called from outside: without padding, and under masks that blocks make of the tokens
that they have."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...models.comfyui.spec import BlockList, names
from ..attention import ParallelAttention
from ..attention_op import Attend
from ..exchange.heads import with_unrepeated
from .streams import Names, StreamLayout


def attend_by(
    attention: ParallelAttention, layout: StreamLayout, module: torch.nn.Module, blocks: BlockList, path: str, call: str
) -> Attend:
    """A call's attention from streams, and to others where its spec names them, under the mask that the whole model
    would have."""
    streams, _, seen = call.partition("|")
    owner = (module, call)
    attend = partial(without_padding, attention, owner, layout, names(streams), names(seen) if seen else ())
    if path in blocks.kv_heads:
        attend = partial(with_unrepeated, attend, getattr(module, blocks.kv_heads[path]))
    if path in blocks.local_masks:
        return partial(with_whole_mask, attend, owner, layout, names(seen or streams))
    reach = getattr(module, blocks.windows[path]) if path in blocks.windows else None
    return attend if reach is None else partial(within_window, attend, layout, names(streams), reach)


def without_padding(
    attention: ParallelAttention,
    owner: object,
    layout: StreamLayout,
    streams: Names,
    seen: Names,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *args: Any,
    **more: Any,
) -> torch.Tensor:
    """Attention of this rank's tokens, to which padding has nothing to say."""
    query = layout.drop_padding(query, streams, -2)
    key, value = (layout.drop_padding(each, seen or streams, -2) for each in (key, value))
    attended = attention(owner, streams, query, key, value, *args, seen=seen, **more)
    return layout.put_padding(attended, streams, -2)


def with_whole_mask(
    attend: Attend,
    owner: object,
    layout: StreamLayout,
    seen: Names,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    **more: Any,
) -> torch.Tensor:
    """Attention whose mask is of this rank's keys; those of the others come with theirs, and those of tokens that do
    not run are remembered."""
    if attn_mask is not None:
        attn_mask = layout.gather(layout.fill(attn_mask, seen, -1), seen, -1)
        if cache := layout.forward.cache:
            attn_mask = cache.masks.setdefault(owner, attn_mask)  # the first forward is of all tokens
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
