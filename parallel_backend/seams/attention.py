"""Seam 2, attention: self-attention over shared tokens, around an unmodified attention module.

Shapes: B batch, H heads, h the heads of one part of this rank's, L local tokens, R the Ulysses group's tokens, C tokens
in its key-value cache, D head dim, E a token's head as it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ..compat import is_traced
from ..device import is_accelerator
from ..errors import RequestError
from ..groups.mesh import Mesh
from ..hooks import Hooks
from ..plan import EXCHANGE_PARTS, MODEL, OFF
from .attention_op import RUNNING, Attend, Attention, plain_attention
from .exchange.differences import Differences
from .exchange.formats import FORMATS, WireFormat
from .exchange.heads import HeadPart, head_parts, repeat_heads
from .exchange.ring import ring_attention
from .exchange.ulysses import UlyssesExchange, view_heads
from .forward import ForwardSlot
from .kernels.backends import Backend
from .kernels.sparse import SparsePattern, SparsePatterns
from .layout import TokenLayout

NAME = "scaled_dot_product_attention"  # in torch.nn.functional
ATTENTION = "parallel_attention"  # attribute that marks a module whose attention is redirected

# The least queries times heads of a part. With fewer, a GPU's multiprocessors would be idle: 96 tiles of 128 queries
# fill most of them. On a CPU, messages would be too small to pay.
ROWS_OF_CARD, ROWS_OF_CPU = 96 * 128, 512


@dataclass(frozen=True, kw_only=True)
class SharedCall:
    """A call of attention over shared tokens: the values that its parts have in common.

    lengths, seen_lengths: tokens of queries and of keys, by rank of the Ulysses group.
    ring_lengths: keys by rank of the ring.
    places: of fresh keys in the cache, if there is one.
    kept: keys and values that every rank has, in the form in which others travel.
    group: the number of query heads that share a key head.
    format: in which tensors travel.
    differences: what arrived in the steps before. If it is there, only what differs from that travels.
    pattern: which tokens attend to which, if not all to all.
    """

    owner: object
    lengths: list[int]
    seen_lengths: list[int]
    ring_lengths: list[int]
    places: list[tuple[int, int]]
    mask: torch.Tensor | None
    scale: float | None
    kept: Sequence[torch.Tensor]
    heads: int
    group: int
    head_dim: int
    dtype: torch.dtype
    format: WireFormat
    differences: Differences | None
    pattern: SparsePattern | None

    def encode(self, what: object, values: torch.Tensor) -> torch.Tensor:
        if self.differences is None:
            return self.format.encode(values)
        return self.differences.encode(self.format, (self.owner, what), values)

    def decode(self, what: object, encoded: torch.Tensor) -> torch.Tensor:
        if self.differences is None:
            return self.format.decode(encoded, self.head_dim, self.dtype)
        return self.differences.decode(self.format, (self.owner, what), encoded, self.head_dim, self.dtype)

    def arrived_keys(self, index: int, *encoded: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns keys and values of a part as they stay until a kernel takes them. Only differences are decoded."""
        if self.differences is None:
            return encoded
        return tuple(self.decode((what, index), each) for what, each in zip(("key", "value"), encoded, strict=True))

    def taken_keys(self, kept: torch.Tensor) -> torch.Tensor:
        """Decodes keys or values for a kernel."""
        return self.format.decode(kept, self.head_dim, self.dtype) if self.differences is None else kept

    def own_mask(self, queries: range) -> torch.Tensor | None:
        """The mask of these heads."""
        mask = self.mask
        if mask is None or mask.ndim < 3 or mask.shape[-3] != self.heads or self.heads == 1:
            return mask
        return mask.narrow(-3, queries.start, len(queries))


class ParallelAttention:
    """Attention of this rank's tokens to all tokens: Ulysses all-to-all, stale cache, ring or local attention,
    all-to-all back.

    Tokens are in rank order, not in the model's order. Attention does not depend on the order, and masks are put into
    rank order. Ulysses exchanges the heads in parts, so that attention computes one part while others travel.
    """

    def __init__(
        self, mesh: Mesh, layout: TokenLayout, backend: Backend, parts: int = EXCHANGE_PARTS, sparse: str = OFF
    ) -> None:
        """parts: the most parts that the exchange is cut into. Fewer are used if parts would be too small. sparse: the
        pattern of a video's tokens, see `ParallelPlan`."""
        self.ulysses = mesh["ulysses"]
        self.ring = mesh["ring"]
        self.exchange = UlyssesExchange(self.ulysses)
        exchanges = self.ulysses.degree * self.ring.degree > 1
        self.format = FORMATS[mesh.plan.exchange_dtype if exchanges else MODEL]
        self.layout = layout
        self.backend = backend
        self.parts = parts
        self.patterns = SparsePatterns(sparse, layout)
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
        call = self.shared_call(owner, streams, seen or streams, query, key, attn_mask, scale, kept)
        key, value = call.encode("key", key), call.encode("value", value)
        if self.ulysses.degree == 1:
            (part,) = head_parts((call.heads,), call.group, 1)
            return self.attend(call, 0, part, query, key, value)
        shape_BLHD = (len(query), query.shape[2], call.heads, query.shape[3])
        out_BHLD = query.new_empty(shape_BLHD).transpose(1, 2)
        parts = head_parts(tuple(self.ulysses.sizes(call.heads)), call.group, self.part_count(query, streams))
        query = call.encode("query", query)
        arriving = [self.scatter(call, part, query, key, value) for part in parts]
        self.layout.forward.run_deferred()
        leaving = []
        for index, (part, arrived) in enumerate(zip(parts, arriving, strict=True)):
            q_BhRE, *keys = arrived()
            q_BhRD = call.decode(("query", index), q_BhRE)
            out_BhRD = self.attend(call, index, part, q_BhRD, *call.arrived_keys(index, *keys))
            encoded = call.encode(("result", index), out_BhRD)
            leaving.append(self.exchange.gather_heads(call.lengths, encoded, part.queries))
        for index, (part, arrived) in enumerate(zip(parts, leaving, strict=True)):
            for run, received in arrived():
                decoded = call.decode(("result", index, run), received)
                view_heads(out_BHLD, part.queries, run).copy_(decoded)
        return out_BHLD

    def shared_call(
        self,
        owner: object,
        streams: tuple[str, ...],
        seen: tuple[str, ...],
        query: torch.Tensor,
        key: torch.Tensor,
        attn_mask: torch.Tensor | None,
        scale: float | None,
        kept: Sequence[torch.Tensor],
    ) -> SharedCall:
        degree, layout, cache = self.ulysses.degree, self.layout, self.layout.forward.cache
        ranks, heads = range(self.ring.index * degree, (self.ring.index + 1) * degree), query.shape[1]
        columns = layout.running if cache is None else layout.slot.every_segment()
        by_rank = layout.lengths_by_rank(seen, cache is not None)
        return SharedCall(
            owner=owner,
            lengths=layout.lengths_by_rank(streams)[ranks.start : ranks.stop],
            seen_lengths=layout.lengths_by_rank(seen)[ranks.start : ranks.stop],
            ring_lengths=[sum(by_rank[start : start + degree]) for start in range(0, len(by_rank), degree)],
            places=[] if cache is None else layout.cache_places(seen, ranks),
            mask=None if attn_mask is None else self.local_mask(attn_mask, streams, seen, ranks, columns),
            scale=scale,
            kept=kept if layout.forward.differences else [self.format.encode(each) for each in kept],
            heads=heads,
            group=heads // key.shape[1],
            head_dim=query.shape[3],
            dtype=query.dtype,
            format=self.format,
            differences=layout.forward.differences,
            pattern=self.patterns.find(streams, seen, ranks, query.device, attn_mask is not None),
        )

    def part_count(self, query: torch.Tensor, streams: tuple[str, ...]) -> int:
        """Returns the number of parts of the exchange. It is the same on all ranks and in all forwards of a run,
        because the cache keeps each part's keys separately."""
        batch, heads = query.shape[:2]
        rows = batch * heads * self.layout.total(streams) // (self.layout.axis.degree * self.layout.patches)
        return max(1, min(self.parts, rows // self.rows))

    def attend(
        self,
        call: SharedCall,
        index: int,
        part: HeadPart,
        q_BhRD: torch.Tensor,
        k_BhRE: torch.Tensor,
        v_BhRE: torch.Tensor,
    ) -> torch.Tensor:
        """Computes attention for one part of this rank's heads, BhRD. Keys and values stay in the form in which they
        were sent until a kernel takes them: in the cache, and on the ring."""
        queries, keys = part.queries[self.ulysses.index], part.keys[self.ulysses.index]
        layout = self.layout
        if cache := layout.forward.cache:
            whole = layout.running == layout.slot.every_segment()
            k_BhRE, v_BhRE = cache.refresh((call.owner, index), call.places, whole, k_BhRE, v_BhRE)

        def taken(kv_BhKE: torch.Tensor) -> torch.Tensor:
            return repeat_heads(call.taken_keys(kv_BhKE), queries, keys, call.group)

        mask = call.own_mask(queries)
        kept = [each[:, keys.start : keys.stop] for each in call.kept]
        if self.ring.degree > 1:

            def attend_with_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: Any) -> Any:
                return self.backend.attend_with_lse(q, taken(k), taken(v), *more)

            given = (q_BhRD, k_BhRE, v_BhRE, call.ring_lengths, self.ring, attend_with_lse, call.scale, mask)
            return ring_attention(*given, meanwhile=layout.forward.run_deferred, kept=kept)
        if not q_BhRD.numel():
            return q_BhRD
        if kept:
            k_BhRE, v_BhRE = (torch.cat(each, 2) for each in zip(kept, (k_BhRE, v_BhRE), strict=True))
        if call.pattern:
            return call.pattern.attend(q_BhRD, taken(k_BhRE), taken(v_BhRE), call.scale)
        return self.backend.attend(q_BhRD, taken(k_BhRE), taken(v_BhRE), call.scale, mask)

    def scatter(
        self, call: SharedCall, part: HeadPart, q_BHLE: torch.Tensor, k_BHLE: torch.Tensor, v_BHLE: torch.Tensor
    ) -> Callable[[], Sequence[torch.Tensor]]:
        """Runs `scatter_heads` on queries, keys and values. Keys of other tokens are sent separately."""
        scatter_heads, keys = self.exchange.scatter_heads, (part.keys, part.keys)
        if call.lengths == call.seen_lengths:
            return scatter_heads(call.lengths, (q_BHLE, k_BHLE, v_BHLE), (part.queries, *keys))
        queries = scatter_heads(call.lengths, (q_BHLE,), (part.queries,))
        seen = scatter_heads(call.seen_lengths, (k_BHLE, v_BHLE), keys)
        return lambda: (*queries(), *seen())

    def local_mask(
        self,
        mask: torch.Tensor,
        streams: tuple[str, ...],
        seen: tuple[str, ...],
        ranks: range,
        columns: list[int],
    ) -> torch.Tensor:
        """Cuts a mask over the whole joined streams (…, 1 or H, 1 or S, K) to the queries of this rank's group.

        Its columns are the keys of every rank in rank order, for the segments in `columns`. Raises RequestError for a
        mask over anything else.
        """
        layout = self.layout
        tokens, keys = layout.total(streams), layout.total(seen)
        if mask.shape[-1] != keys or mask.shape[-2] not in (1, tokens):
            raise RequestError(
                f"An attention mask of shape {tuple(mask.shape)} does not cover the {tokens} tokens.",
                "Use ulysses=1, ring=1 and pipefusion=1.",
            )
        every_rank = range(layout.axis.degree)
        mask = mask.index_select(-1, layout.token_order(seen, every_rank, columns, mask.device))
        if mask.shape[-2] != 1:
            mask = mask.index_select(-2, layout.token_order(streams, ranks, layout.running, mask.device))
        return mask


class AttentionSeam(TorchFunctionMode):
    """While entered, redirects the running module's `F.scaled_dot_product_attention` calls to `attention`.

    A mode sees each of torch's functions, which takes the host 2 µs each. So if only the model's own code runs
    (`ForwardSlot.is_plain`), and the module's first forward has called attention by its name in `F` alone, later ones
    replace that name and do without the mode.
    """

    def __init__(self, attention: Attention, slot: ForwardSlot) -> None:
        super().__init__()
        self.attention = attention
        self.slot = slot
        self.is_named = False  # whether the module calls attention by that name alone
        self.named = 0  # calls by that name
        self.undo: list[Callable[[], object]] = []

    def begin(self) -> None:
        self.named = 0
        if self.slot.is_plain:
            self.replace_name(self.attend_by_name if self.is_named else self.count_by_name)
        if not (self.slot.is_plain and self.is_named):
            self.__enter__()
            self.undo.append(lambda: self.__exit__(None, None, None))

    def end(self) -> None:
        self.is_named = self.slot.is_plain and 0 < self.attention.calls == self.named
        while self.undo:
            self.undo.pop()()

    def replace_name(self, attend: Callable[..., torch.Tensor]) -> None:
        before = getattr(F, NAME)
        setattr(F, NAME, attend)
        self.undo.append(lambda: setattr(F, NAME, before))

    def count_by_name(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.named += 1
        return plain_attention(*args, **kwargs)  # the mode redirects it

    def attend_by_name(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.named += 1
        return self.redirect(attend_by, args, kwargs)

    def redirect(self, attend: Callable[..., torch.Tensor], args: Any, kwargs: Any) -> torch.Tensor:
        """Attends while the name is torch's own, because kernels call it."""
        if not self.slot.is_plain:
            return attend(self.attention, *args, **kwargs)
        before = getattr(F, NAME)
        setattr(F, NAME, plain_attention)
        try:
            return attend(self.attention, *args, **kwargs)
        finally:
            setattr(F, NAME, before)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not plain_attention:
            return func(*args, **(kwargs or {}))
        return self.redirect(attend_untraced if is_traced() else attend_by, args, kwargs or {})


def attend_by(attention: Attention, *args: Any, **kwargs: Any) -> torch.Tensor:
    return attention.attends[attention.turn()](*args, **kwargs)


# If a script has compiled the model itself, its graph ends here. This costs 30 µs, so others do without.
attend_untraced: Any = torch.compiler.disable(attend_by)


def install_attention(
    block: torch.nn.Module, path: str, attends: Sequence[Attend], hooks: Hooks, slot: ForwardSlot
) -> None:
    """Redirects a module's attention calls to `attends`, see Attention. The module keeps its projections and norms.

    In a compiled block, attention is an operator that does this, because torch traces no tensor methods within a mode.

    A module that attends in another way would see this rank's tokens only, so it raises an error. A module that a step
    cache skips raises none.
    """
    module, attention = block.get_submodule(path), Attention(path, attends, slot)
    seam = AttentionSeam(attention, slot)

    def enter(*_: object) -> None:
        attention.calls = 0
        attention.is_shared = not slot.is_between  # else all tokens are here, so the module's own attention is right
        if not attention.is_shared:
            return
        if RUNNING.compiles:
            RUNNING.module = attention
        else:
            seam.begin()

    def leave(_module: torch.nn.Module, _args: tuple, output: object) -> None:
        if not attention.is_shared:
            return
        if RUNNING.compiles:
            RUNNING.module = None
        else:
            seam.end()
        if output is not None and not attention.calls and not slot.forward.skipped:
            raise RuntimeError(f"{type(module).__name__} does not attend through scaled_dot_product_attention.")

    hooks.before(module, enter)
    hooks.after(module, leave, always_call=True)
    hooks.replace(module, ATTENTION, attention)
