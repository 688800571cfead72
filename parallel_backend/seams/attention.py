"""Seam 2, attention: self-attention over shared tokens, around an unmodified attention module.

Shapes: B batch, H heads, h the heads of one part of this rank's, L local tokens, R the Ulysses group's tokens, D head
dim, E the numbers or bytes of a token's head as it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ..compat import is_traced
from ..device import is_accelerator
from ..errors import RequestError
from ..groups.mesh import Mesh
from ..hooks import Hooks, ReplaceFunction
from ..plan import EXCHANGE_PARTS
from .attention_op import RUNNING, Attend, plain_attention
from .exchange.heads import HeadPart, head_parts
from .exchange.ring import ring_attention
from .exchange.ulysses import gather_heads, scatter_heads, view_heads
from .forward import Code, ForwardSlot
from .kernels.backends import Backend
from .layout import TokenLayout
from .shared_call import SharedCall, mask_of_group

NAME = "scaled_dot_product_attention"  # in torch.nn.functional
ATTENTION = "parallel_attention"  # attribute that marks a module whose attention is redirected

# The least queries times heads of a part. With fewer, a GPU's multiprocessors would be idle: 96 tiles of 128 queries
# fill most of them. On a CPU, messages would be too small to pay.
ROWS_OF_CARD, ROWS_OF_CPU = 96 * 128, 512


class ParallelAttention:
    """Attention of this rank's tokens to all tokens: Ulysses all-to-all, stale cache, ring or local attention,
    all-to-all back.

    Tokens are in rank order, not in the model's order. Attention does not depend on the order, and masks are put into
    rank order. Ulysses exchanges the heads in parts, so that attention computes one part while others travel.
    """

    def __init__(self, mesh: Mesh, layout: TokenLayout, backend: Backend, parts: int = EXCHANGE_PARTS) -> None:
        """parts: the most parts that the exchange is cut into. Fewer are used if parts would be too small."""
        self.ulysses = mesh["ulysses"]
        self.ring = mesh["ring"]
        self.layout = layout
        self.backend = backend
        self.parts = parts
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
        seen = seen or streams
        of_shape, forward = self.of_shape(streams, seen, query, key), self.layout.forward
        call = of_shape(forward=forward, owner=owner, mask=None, scale=scale, kept=kept)
        if attn_mask is not None:
            call = call._replace(mask=mask_of_group(attn_mask, self.layout, streams, seen, call.ranks))
        key, value = call.encode("key", key), call.encode("value", value)
        if self.ulysses.degree == 1:
            return self.attend(call, 0, call.parts[0], query, key, value)
        shape_BLHD = (len(query), query.shape[2], call.heads, query.shape[3])
        out_BHLD = query.new_empty(shape_BLHD).transpose(1, 2)
        query = call.encode("query", query)
        arriving = [self.scatter(call, part, query, key, value) for part in call.parts]
        call.forward.run_deferred()
        results = []
        for index, part in enumerate(call.parts):
            arrived: list[torch.Tensor] = []
            for arrive in arriving[index]:
                arrived += arrive()
            if call.forward.differences:
                named = zip(("query", "key", "value"), arrived, strict=True)
                arrived = [call.decode((name, index), each) for name, each in named]
            out_BhRD = self.attend(call, index, part, *arrived)
            out_BhRE = call.encode(("result", index), out_BhRD)
            results.append(gather_heads(self.ulysses, call.lengths, out_BhRE, part.queries))
        for index, arrive in enumerate(results):
            for run, received in arrive():
                decoded = call.decode(("result", index, run.ranks), received)
                view_heads(out_BHLD, run).copy_(decoded)
        return out_BHLD

    def of_shape(
        self, streams: tuple[str, ...], seen: tuple[str, ...], query: torch.Tensor, key: torch.Tensor
    ) -> Callable[..., SharedCall]:
        """Returns what makes calls with tensors of these shapes in the running forward."""
        layout, forward = self.layout, self.layout.forward
        at = (self, streams, seen, query.shape, key.shape[1])
        if at in forward.counts:
            return forward.counts[at]
        degree, heads = self.ulysses.degree, query.shape[1]
        ranks, group = range(self.ring.index * degree, (self.ring.index + 1) * degree), heads // key.shape[1]
        by_rank = layout.lengths_by_rank(seen, forward.cache is not None)
        most = 1 if degree == 1 else self.part_count(query, streams)
        own, of_keys = (tuple(layout.lengths_by_rank(each)[ranks.start : ranks.stop]) for each in (streams, seen))
        forward.counts[at] = partial(
            SharedCall,
            ranks=ranks,
            lengths=own,
            seen_lengths=of_keys,
            ring_lengths=[sum(by_rank[start : start + degree]) for start in range(0, len(by_rank), degree)],
            places=[] if forward.cache is None else layout.cache_places(seen, ranks),
            heads=heads,
            group=group,
            parts=head_parts(tuple(self.ulysses.sizes(heads)), group, most),
        )
        return forward.counts[at]

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
        k_BhRD: torch.Tensor,
        v_BhRD: torch.Tensor,
    ) -> torch.Tensor:
        """Computes attention for one part of this rank's heads, BhRD."""
        queries, keys = part.queries[self.ulysses.index], part.keys[self.ulysses.index]
        layout = self.layout
        if cache := layout.slot.forward.cache:
            whole = layout.forward.running == layout.slot.every_segment()
            k_BhRD, v_BhRD = cache.refresh((call.owner, index), call.places, whole, k_BhRD, v_BhRD)
        mask = None if call.mask is None else call.own_mask(queries)
        kept = [each[:, keys.start : keys.stop] for each in call.kept] if call.kept else ()
        if self.ring.degree > 1:

            def attend_with_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: Any) -> Any:
                key, value = call.repeat(k, queries, keys), call.repeat(v, queries, keys)
                return self.backend.attend_with_lse(q, key, value, *more)

            given = (q_BhRD, k_BhRD, v_BhRD, call.ring_lengths, self.ring, attend_with_lse, layout.slot)
            return ring_attention(*given, call.scale, mask, kept)
        if not q_BhRD.numel():
            return q_BhRD
        if kept:
            k_BhRD, v_BhRD = (torch.cat(each, 2) for each in zip(kept, (k_BhRD, v_BhRD), strict=True))
        key, value = call.repeat(k_BhRD, queries, keys), call.repeat(v_BhRD, queries, keys)
        return self.backend.attend(q_BhRD, key, value, call.scale, mask)

    def scatter(
        self,
        call: SharedCall,
        part: HeadPart,
        q_BHLE: torch.Tensor,
        k_BHLE: torch.Tensor,
        v_BHLE: torch.Tensor,
    ) -> tuple[Callable[[], Sequence[torch.Tensor]], ...]:
        """Runs `scatter_heads` on queries, keys and values. Keys of other tokens are sent separately."""
        axis, keys = self.ulysses, (part.keys, part.keys)
        if call.lengths == call.seen_lengths:
            given = (q_BHLE, k_BHLE, v_BHLE), (part.queries, *keys)
            return (scatter_heads(axis, call.lengths, *given),)
        return (
            scatter_heads(axis, call.lengths, (q_BHLE,), (part.queries,)),
            scatter_heads(axis, call.seen_lengths, (k_BHLE, v_BHLE), keys),
        )


class AttentionSeam:
    """Redirects a module's `F.scaled_dot_product_attention` calls to `attends`, one function per call in order. The
    last one computes all further calls. The module keeps its projections and norms.

    A mode redirects them, which sees each of torch's functions. This takes the host 2 µs each. So if only the model's
    own code runs (`Code.NONE`), and the module's first forward has called attention by its name in `F`
    alone, later ones replace that name and do without the mode. The same holds for a module that has all tokens
    (`is_local`), whatever code runs: if a call is missed, its result is right all the same. In a compiled block,
    attention is an operator that calls them, because torch traces no tensor methods within a mode.

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
        self.undo: list[Callable[[], object]] = []  # of the running call of the module

    def enter(self, *_: object) -> None:
        self.calls = 0
        self.is_shared = not self.slot.has_all_tokens  # else all are here, so the module's own attention is right
        if not self.is_shared:
            return
        if RUNNING.compiles:
            RUNNING.module = self
        else:
            self.begin()

    def leave(self, module: torch.nn.Module, _args: tuple, output: object) -> None:
        if not self.is_shared:
            return
        if RUNNING.compiles:
            RUNNING.module = None
        else:
            self.end()
        if output is not None and not self.calls:
            raise RuntimeError(f"{type(module).__name__} does not attend through scaled_dot_product_attention.")

    def begin(self) -> None:
        self.calls_by_name = 0
        is_untraced = self.is_local and not is_traced()  # torch.compile cannot trace a replaced name
        self.may_replace_name = self.slot.code is Code.NONE or is_untraced
        if self.may_replace_name:
            self.replace_name(self.attend_by_name if self.attends_by_name else self.count_by_name)
        if not (self.may_replace_name and self.attends_by_name):
            mode = ReplaceFunction(plain_attention, self.attend_in_mode)
            mode.__enter__()
            self.undo.append(lambda: mode.__exit__(None, None, None))

    def end(self) -> None:
        self.attends_by_name = self.may_replace_name and 0 < self.calls == self.calls_by_name
        while self.undo:
            self.undo.pop()()

    def replace_name(self, attend: Callable[..., torch.Tensor]) -> None:
        before = getattr(F, NAME)
        setattr(F, NAME, attend)
        self.undo.append(lambda: setattr(F, NAME, before))

    def count_by_name(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.calls_by_name += 1
        return plain_attention(*args, **kwargs)  # the mode redirects it

    def attend_by_name(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.calls_by_name += 1
        return self.redirect(attend_by, args, kwargs)

    def attend_in_mode(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.redirect(attend_untraced if is_traced() else attend_by, args, kwargs)

    def redirect(self, attend: Callable[..., torch.Tensor], args: Any, kwargs: Any) -> torch.Tensor:
        """Attends while the name is torch's own, because kernels call it."""
        if not self.may_replace_name:
            return attend(self, *args, **kwargs)
        before = getattr(F, NAME)
        setattr(F, NAME, plain_attention)
        try:
            return attend(self, *args, **kwargs)
        finally:
            setattr(F, NAME, before)

    def count_call(self) -> int:
        """Counts a call. Returns the place of the function that computes it."""
        call = min(self.calls, len(self.attends) - 1)
        self.calls += 1
        return call


def attend_by(seam: AttentionSeam, *args: Any, **kwargs: Any) -> torch.Tensor:
    return seam.attends[seam.count_call()](*args, **kwargs)


# If a script has compiled the model itself, its graph ends here. This costs 30 µs, so others do without.
attend_untraced: Any = torch.compiler.disable(attend_by)


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
