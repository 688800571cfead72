"""Seam 2, attention: self-attention over shared tokens, around an unmodified attention module.

Shapes: B batch, H heads, h the heads of one part of this rank's, L local tokens, R the Ulysses group's tokens, D head
dim, E the numbers or bytes of a token's head as it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ..compat import is_traced
from ..device import is_accelerator
from ..errors import RequestError
from ..groups.mesh import Mesh
from ..hooks import Hooks, ReplaceFunction
from ..plan import EXCHANGE_PARTS
from .attention_op import RUNNING, Attend, plain_attention
from .exchange.heads import HeadPart, head_parts, repeat_heads
from .exchange.ring import ring_attention
from .exchange.ulysses import gather_heads, scatter_heads, view_heads
from .forward import ForwardSlot, NodeCode
from .kernels.backends import Backend
from .layout import TokenLayout

NAME = "scaled_dot_product_attention"  # in torch.nn.functional
ATTENTION = "parallel_attention"  # attribute that marks a module whose attention is redirected

# The least queries times heads of a part. With fewer, a GPU's multiprocessors would be idle: 96 tiles of 128 queries
# fill most of them. On a CPU, messages would be too small to pay.
ROWS_OF_CARD, ROWS_OF_CPU = 96 * 128, 512


class HeadShares(NamedTuple):
    """How the ranks share attention calls with tensors of one shape in a forward.

    lengths, seen_lengths: tokens of queries and of keys, by rank of the Ulysses group.
    ring_lengths: keys by rank of the ring.
    ranges: of fresh keys in the cache, if there is one, as (start, length).
    heads: of the queries. group: the number of query heads that share a key head.
    parts: in which heads are exchanged.
    """

    lengths: tuple[int, ...]
    seen_lengths: tuple[int, ...]
    ring_lengths: list[int]
    ranges: list[tuple[int, int]]
    heads: int
    group: int
    parts: tuple[HeadPart, ...]


class ParallelAttention:
    """Attention of this rank's tokens to all tokens: Ulysses all-to-all, stale cache, ring or local attention,
    all-to-all back.

    Tokens are in rank order, not in the model's order. Attention does not depend on the order, and masks are put into
    rank order. Ulysses exchanges the heads in parts, so that attention computes one part while others travel.
    """

    def __init__(self, mesh: Mesh, layout: TokenLayout, backend: Backend) -> None:
        self.ulysses = mesh["ulysses"]
        self.ring = mesh["ring"]
        start = self.ring.index * self.ulysses.degree
        self.ranks = range(start, start + self.ulysses.degree)  # of the Ulysses group, on the sequence axis
        self.layout = layout
        self.backend = backend
        self.parts = EXCHANGE_PARTS  # the most; fewer if they would be too small
        self.rows = ROWS_OF_CARD if is_accelerator(mesh.device) else ROWS_OF_CPU

    def __call__(
        self,
        owner: object,
        streams: tuple[str, ...],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        seen: tuple[str, ...] = (),
        kept: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """Computes `F.scaled_dot_product_attention` of the local tokens of `streams`, BHLD, to all of their tokens.

        owner: the attention module, or one of its calls, as the key of the cache.
        seen: the streams that are attended to, if they are others.
        kept: keys and values that are attended to, too, and that every rank has: BHND, with the heads of `key`.
        """
        if dropout_p or is_causal:
            raise RequestError(
                "Self-attention with dropout or a causal mask is not supported on shared tokens.",
                "Use ulysses=1, ring=1, pipefusion=1 and attention=native.",
            )
        seen, forward = seen or streams, self.layout.forward
        heads, kv_heads = query.shape[1], key.shape[1]
        at = (self, streams, seen, query.shape, kv_heads)
        shares = forward.once(at, lambda: self.share_heads(streams, seen, query, heads // kv_heads))
        mask = None if attn_mask is None else mask_of_group(attn_mask, self.layout, streams, seen, self.ranks)
        attend = partial(self.attend, shares, owner, mask, scale, kept)
        if self.ulysses.degree == 1:
            return attend(0, query, key, value)
        differences = forward.differences

        def encode(what: object, values: torch.Tensor) -> torch.Tensor:
            return values if differences is None else differences.encode((owner, what), values)

        def decode(what: object, encoded: torch.Tensor) -> torch.Tensor:
            return encoded if differences is None else differences.decode((owner, what), encoded)

        out_BHLD = query.new_empty((len(query), query.shape[2], heads, query.shape[3])).transpose(1, 2)
        query, key, value = encode("query", query), encode("key", key), encode("value", value)
        arriving = [self.scatter(shares, part, query, key, value) for part in shares.parts]
        forward.run_deferred()
        results = []
        for index, part in enumerate(shares.parts):
            arrived: list[torch.Tensor] = []
            for arrive in arriving[index]:
                arrived += arrive()
            if differences:
                named = zip(("query", "key", "value"), arrived, strict=True)
                arrived = [decode((name, index), each) for name, each in named]
            out_BhRE = encode(("result", index), attend(index, *arrived))
            results.append(gather_heads(self.ulysses, shares.lengths, out_BhRE, part.queries))
        for index, arrive in enumerate(results):
            for run, received in arrive():
                view_heads(out_BHLD, run).copy_(decode(("result", index, run.ranks), received))
        return out_BHLD

    def share_heads(
        self, streams: tuple[str, ...], seen: tuple[str, ...], query: torch.Tensor, group: int
    ) -> HeadShares:
        """Shares the heads of calls with queries of this shape. group: how many query heads share a key head."""
        layout, degree, heads, ranks = self.layout, self.ulysses.degree, query.shape[1], self.ranks
        cache = layout.forward.cache
        by_rank = layout.lengths_by_rank(seen, cache is not None)
        rows = len(query) * heads * layout.total(streams) // (layout.axis.degree * layout.slot.patches)
        # The same on all ranks and in all forwards of a run, because the cache keeps each part's keys separately.
        most = 1 if degree == 1 else max(1, min(self.parts, rows // self.rows))
        return HeadShares(
            lengths=tuple(layout.lengths_by_rank(streams)[ranks.start : ranks.stop]),
            seen_lengths=tuple(layout.lengths_by_rank(seen)[ranks.start : ranks.stop]),
            ring_lengths=[sum(by_rank[start : start + degree]) for start in range(0, len(by_rank), degree)],
            ranges=[] if cache is None else layout.cache_ranges(seen, ranks),
            heads=heads,
            group=group,
            parts=head_parts(tuple(self.ulysses.sizes(heads)), group, most),
        )

    def attend(
        self,
        shares: HeadShares,
        owner: object,
        mask: torch.Tensor | None,
        scale: float | None,
        kept: Sequence[torch.Tensor],
        index: int,
        q_BhRD: torch.Tensor,
        k_BhRD: torch.Tensor,
        v_BhRD: torch.Tensor,
    ) -> torch.Tensor:
        """Computes attention for one part of this rank's heads, BhRD. index: of the part."""
        layout, part, own = self.layout, shares.parts[index], self.ulysses.index
        queries, keys = part.queries[own], part.keys[own]
        if cache := layout.forward.cache:
            whole = layout.forward.running == layout.slot.every_patch()
            k_BhRD, v_BhRD = cache.refresh((owner, index), shares.ranges, whole, k_BhRD, v_BhRD)
        if mask is not None and mask.ndim > 2 and 1 < mask.shape[-3] == shares.heads:
            mask = mask.narrow(-3, queries.start, len(queries))
        kept = [each[:, keys.start : keys.stop] for each in kept] if kept else ()
        repeat = partial(repeat_heads, queries=queries, keys=keys, group=shares.group)
        if self.ring.degree > 1:

            def attend_with_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: Any) -> Any:
                return self.backend.attend_with_lse(q, repeat(k), repeat(v), *more)

            given = (q_BhRD, k_BhRD, v_BhRD, shares.ring_lengths, self.ring, attend_with_lse, layout.slot)
            return ring_attention(*given, scale, mask, kept)
        if not q_BhRD.numel():
            return q_BhRD
        if kept:
            k_BhRD, v_BhRD = (torch.cat(each, 2) for each in zip(kept, (k_BhRD, v_BhRD), strict=True))
        return self.backend.attend(q_BhRD, repeat(k_BhRD), repeat(v_BhRD), scale, mask)

    def scatter(
        self,
        shares: HeadShares,
        part: HeadPart,
        q_BHLE: torch.Tensor,
        k_BHLE: torch.Tensor,
        v_BHLE: torch.Tensor,
    ) -> tuple[Callable[[], Sequence[torch.Tensor]], ...]:
        """Runs `scatter_heads` on queries, keys and values. Keys of other tokens are sent separately."""
        axis, keys = self.ulysses, (part.keys, part.keys)
        if shares.lengths == shares.seen_lengths:
            given = (q_BHLE, k_BHLE, v_BHLE), (part.queries, *keys)
            return (scatter_heads(axis, shares.lengths, *given),)
        return (
            scatter_heads(axis, shares.lengths, (q_BHLE,), (part.queries,)),
            scatter_heads(axis, shares.seen_lengths, (k_BHLE, v_BHLE), keys),
        )


def mask_of_group(
    mask: torch.Tensor, layout: TokenLayout, streams: tuple[str, ...], seen: tuple[str, ...], ranks: range
) -> torch.Tensor:
    """Cuts a mask over the whole joined streams (…, 1 or H, 1 or S, K) to the queries of the ranks of a group.

    Its columns are the keys of every rank in rank order, of the patches that run or that a cache has. Raises
    RequestError for a mask over anything else.
    """
    tokens, keys = layout.total(streams), layout.total(seen)
    if mask.shape[-1] != keys or mask.shape[-2] not in (1, tokens):
        raise RequestError(
            f"An attention mask of shape {tuple(mask.shape)} does not cover the {tokens} tokens.",
            "Use ulysses=1, ring=1 and pipefusion=1.",
        )
    every_rank = range(layout.axis.degree)
    has_cache = layout.forward.cache is not None
    mask = mask.index_select(-1, layout.token_order(seen, every_rank, has_cache, mask.device))
    if mask.shape[-2] != 1:
        mask = mask.index_select(-2, layout.token_order(streams, ranks, False, mask.device))
    return mask


class AttentionSeam:
    """Redirects a module's `F.scaled_dot_product_attention` calls to `attends`, one function per call in order. The
    last one computes all further calls. The module keeps its projections and norms.

    A mode redirects them. It sees each of torch's functions, which takes the host 2 µs each. If only the model's own
    code runs (`NodeCode.NONE`), and the module's first forward has called attention by its name in `F` alone, later
    forwards replace that name instead. So does a module that has all tokens (`is_local`), whatever code runs: if a call
    is missed, its result is right all the same. In a compiled block, attention is an operator that calls `attends`,
    because torch traces no tensor methods within a mode.

    A module that attends in another way would see this rank's tokens only, so it raises an error.
    """

    def __init__(self, path: str, attends: Sequence[Attend], slot: ForwardSlot, is_local: bool = False) -> None:
        """path: of the module in its block. slot: of the model's running forward."""
        self.path = path
        self.attends = attends
        self.slot = slot
        self.is_local = is_local
        self.calls = 0  # that the module's running forward has made
        self.is_shared = True  # whether they are redirected
        self.may_replace_name = False
        self.attends_by_name = False  # whether the module calls attention by that name alone
        self.calls_by_name = 0  # calls by that name
        self.hooks = Hooks()  # of the running call of the module

    def enter(self, *_: object) -> None:
        self.calls = 0
        self.is_shared = not self.slot.has_all_tokens  # else all are here, so the module's own attention is right
        if not self.is_shared:
            return
        if RUNNING.compiles:
            RUNNING.seam = self
            return
        self.calls_by_name = 0
        is_untraced = self.is_local and not is_traced()  # torch.compile cannot trace a replaced name
        self.may_replace_name = self.slot.code is NodeCode.NONE or is_untraced
        if self.may_replace_name:
            self.hooks.replace(F, NAME, self.attend_by_name)
        if not (self.may_replace_name and self.attends_by_name):
            self.hooks.enter_context(ReplaceFunction(plain_attention, self.attend_in_mode))

    def leave(self, module: torch.nn.Module, _args: tuple, output: object) -> None:
        if not self.is_shared:
            return
        if RUNNING.compiles:
            RUNNING.seam = None
        else:
            self.attends_by_name = self.may_replace_name and 0 < self.calls == self.calls_by_name
            self.hooks.close()
        if output is not None and not self.calls:
            raise RuntimeError(f"{type(module).__name__} does not attend through scaled_dot_product_attention.")

    def attend_by_name(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.calls_by_name += 1
        if self.attends_by_name:
            return self.redirect(self.attend, args, kwargs)
        return plain_attention(*args, **kwargs)  # the mode redirects it

    def attend_in_mode(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.redirect(self.attend_untraced if is_traced() else self.attend, args, kwargs)

    def redirect(self, attend: Callable[..., torch.Tensor], args: Any, kwargs: Any) -> torch.Tensor:
        """Attends while the name is torch's own, because kernels call it."""
        if not self.may_replace_name:
            return attend(*args, **kwargs)
        before = getattr(F, NAME)
        setattr(F, NAME, plain_attention)
        try:
            return attend(*args, **kwargs)
        finally:
            setattr(F, NAME, before)

    def attend(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.attends[self.count_call()](*args, **kwargs)

    # If a script has compiled the model itself, its graph ends here. This costs 30 µs, so others do without.
    attend_untraced: Any = torch.compiler.disable(attend)

    def count_call(self) -> int:
        """Counts a call. Returns the place of the function that computes it."""
        call = min(self.calls, len(self.attends) - 1)
        self.calls += 1
        return call


def install_attention(
    block: torch.nn.Module,
    path: str,
    attends: Sequence[Attend],
    hooks: Hooks,
    slot: ForwardSlot,
    is_local: bool = False,
) -> None:
    """Redirects a module's attention calls to `attends`, see AttentionSeam. is_local: whether this rank has all
    tokens."""
    module, seam = block.get_submodule(path), AttentionSeam(path, attends, slot, is_local)
    hooks.before(module, seam.enter)
    hooks.after(module, seam.leave, always_call=True)
    hooks.replace(module, ATTENTION, seam)
