"""Attention as a block's spec describes it: without padding, with unrepeated keys, under the whole model's mask."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..models.spec import BlockList, names
from .attention import ParallelAttention
from .attention_op import Attend
from .exchange.heads import with_unrepeated
from .layout import Names, TokenLayout


def attention_of(
    attention: ParallelAttention,
    module: torch.nn.Module,
    blocks: BlockList,
    path: str,
    call: str,
    kv_heads: int | None,
) -> Attend:
    """Returns the attention of one call of a module, between the streams of its spec, under the mask of the whole
    model. kv_heads: how many key heads the module repeats, if it repeats them."""
    streams, _, seen = call.partition("|")
    layout, owner = attention.layout, (module, call)
    attend = partial(without_padding, attention, owner, layout, names(streams), names(seen) if seen else ())
    if kv_heads:
        attend = partial(with_unrepeated, attend, kv_heads)
    if path in blocks.local_masks:
        return partial(with_whole_mask, attend, owner, layout, names(seen or streams))
    reach = getattr(module, blocks.windows[path]) if path in blocks.windows else None
    return attend if reach is None else partial(within_window, attend, layout, names(streams), reach)


def without_padding(
    attention: ParallelAttention,
    owner: object,
    layout: TokenLayout,
    streams: Names,
    seen: Names,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *args: Any,
    **more: Any,
) -> torch.Tensor:
    """Computes attention of this rank's tokens. Padding gets zeros, and nothing attends to it."""
    query = layout.drop_padding(query, streams, -2)
    key, value = (layout.drop_padding(each, seen or streams, -2) for each in (key, value))
    attended = attention(owner, streams, query, key, value, *args, seen=seen, **more)
    return layout.put_padding(attended, streams, -2)


def with_whole_mask(
    attend: Attend,
    owner: object,
    layout: TokenLayout,
    seen: Names,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    **more: Any,
) -> torch.Tensor:
    """Computes attention under a mask of this rank's keys. The masks of all ranks are gathered, once per forward. Masks
    of tokens that do not run are kept from the first forward, which has all tokens."""
    if attn_mask is not None:
        sides, name = layout.forward.sides, f"mask.{seen}"
        if name not in sides:
            sides[name] = (None, layout.gather(attn_mask, seen, -1))
        attn_mask = whole = sides[name][1]
        if cache := layout.forward.cache:
            attn_mask = cache.masks.setdefault(owner, whole)
    return attend(query, key, value, attn_mask, **more)


def within_window(
    attend: Attend,
    layout: TokenLayout,
    streams: Names,
    reach: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    **more: Any,
) -> torch.Tensor:
    """Computes attention to tokens at most `reach` away, and ignores any mask of local tokens."""
    sides, name = layout.forward.sides, f"window.{streams}.{reach}"
    if name not in sides:
        places = torch.arange(layout.total(streams), device=query.device)
        sides[name] = (reach, ((places[:, None] - places).abs() <= reach)[None, None])
    return attend(query, key, value, sides[name][1], **more)
