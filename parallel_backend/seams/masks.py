"""Attention as a block's spec describes it: without padding, with unrepeated keys, under the whole model's mask.

A module that attends in another way than its spec says raises an error.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..errors import RequestError
from ..models.attention_checks import AttentionSizes
from ..models.spec import BlockList, names
from .attention import ParallelAttention
from .attention_op import Attend
from .exchange.heads import with_unrepeated
from .layout import Names, TokenLayout


def attention_of(
    attention: ParallelAttention,
    model: torch.nn.Module,
    module: torch.nn.Module,
    blocks: BlockList,
    path: str,
    call: str,
    sizes: AttentionSizes,
) -> Attend:
    """Returns the function for one attention call of a model's module: between the streams of its spec, under the mask
    of the whole model. sizes: by the spec."""
    streams, _, seen = call.partition("|")
    layout, owner = attention.layout, (module, call)
    attend = partial(without_padding, attention, owner, layout, names(streams), names(seen) if seen else ())
    if sizes.kv_heads:
        attend = partial(with_unrepeated, attend, sizes.kv_heads)
    place = f"{type(model).__name__}: {f'{path} of {blocks.path}' if path else blocks.path}"
    attend = partial(as_described, attend, place, layout, names(streams), names(seen or streams), sizes)
    if blocks.kept:
        attend = partial(after_kept, attend, layout)
    if path in blocks.local_masks:
        return partial(with_whole_mask, attend, owner, layout, names(seen or streams))
    reach = getattr(module, blocks.windows[path]) if path in blocks.windows else None
    return attend if reach is None else partial(within_window, attend, layout, names(streams), reach)


def as_described(
    attend: Attend,
    place: str,
    layout: TokenLayout,
    streams: Names,
    seen: Names,
    sizes: AttentionSizes,
    query: torch.Tensor,
    key: torch.Tensor,
    *args: Any,
    **more: Any,
) -> torch.Tensor:
    """Computes attention of the module at this path. Raises RequestError, on every rank alike, if the call has other
    tokens or heads than the spec says."""
    for what, own, tokens in (("attends from", streams, query.shape[-2]), ("attends to", seen, key.shape[-2])):
        if not layout.is_local(own, tokens):
            raise RequestError(
                f"{place} {what} {tokens} tokens, and `attention` says {'+'.join(own)}; this rank has "
                f"{layout.describe_local()}.",
                "List its streams in `attention`, as parallel_backend/models/README.md says, or use ulysses=1 and "
                "ring=1.",
            )
    of_keys = [("kv_heads", key.shape[1], (sizes.heads, sizes.kv_heads))] if sizes.kv_heads else []
    for field, heads, known in (("heads", query.shape[1], (sizes.heads,)), *of_keys):
        if heads not in known:
            raise RequestError(
                f"{place} has {heads} heads{'' if field == 'heads' else ' of keys'}, and `{field}` says {known[-1]}.",
                f"Correct `{field}` of the spec, or use ulysses=1 and ring=1.",
            )
    return attend(query, key, *args, **more)


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


def after_kept(
    attend: Attend,
    layout: TokenLayout,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *args: Any,
    **more: Any,
) -> torch.Tensor:
    """Computes attention to keys of which the first are kept: every rank has them."""
    count = layout.forward.kept
    kept, fresh = zip(*((each[..., :count, :], each[..., count:, :]) for each in (key, value)), strict=True)
    return attend(query, *fresh, *args, kept=kept, **more)


def with_whole_mask(
    attend: Attend,
    owner: object,
    layout: TokenLayout,
    seen: Names,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *args: Any,
    **more: Any,
) -> torch.Tensor:
    """Computes attention under a mask of this rank's keys. The masks of all ranks are gathered, once per forward. Masks
    of tokens that do not run are kept from the first forward, which has all tokens."""
    if attn_mask is not None:
        sides, name = layout.forward.sides, f"mask.{seen}"
        if name not in sides:
            sides[name] = (None, layout.gather(attn_mask, seen, -1, name))
        attn_mask = whole = sides[name][1]
        if cache := layout.forward.cache:
            attn_mask = cache.masks.setdefault(owner, whole)
    return attend(query, key, value, attn_mask, *args, **more)


def within_window(
    attend: Attend,
    layout: TokenLayout,
    streams: Names,
    reach: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *args: Any,
    **more: Any,
) -> torch.Tensor:
    """Computes attention to tokens at most `reach` away, and ignores any mask of local tokens."""
    sides, name = layout.forward.sides, f"window.{streams}.{reach}"
    if name not in sides:
        places = torch.arange(layout.total(streams), device=query.device)
        sides[name] = (reach, ((places[:, None] - places).abs() <= reach)[None, None])
    return attend(query, key, value, sides[name][1], *args, **more)
