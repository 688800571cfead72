"""Seam 2, attention: self-attention over shared tokens, around an unmodified attention module.

Shapes: B batch, H heads, h = H / ulysses local heads, L local tokens, R the Ulysses group's tokens, C tokens in its
key-value cache, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ..errors import RequestError
from ..groups.mesh import Mesh
from ..hooks import Hooks
from .attention_op import RUNNING, Attend, Attention
from .backends import Backend
from .layout import TokenLayout
from .ring import ring_attention

ATTENTION = "parallel_attention"  # attribute of a module whose attention is handed over


class StaleCache:
    """Keys and values of all tokens, by attention module: PipeFusion's only state (https://arxiv.org/abs/2405.14430).

    Belongs to one request. A forward over all segments fills it, one over a patch replaces that patch's entries.
    """

    def __init__(self) -> None:
        self.held: dict[object, tuple[torch.Tensor, torch.Tensor]] = {}
        self.masks: dict[object, torch.Tensor] = {}  # over the keys, which a run does not change

    def refresh(
        self, owner: object, places: list[tuple[int, int]], whole: bool, k_BhRD: torch.Tensor, v_BhRD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes fresh keys and values to `places` (start, length) and returns those of all tokens, BhCD."""
        if whole:
            self.held[owner] = (k_BhRD.clone(), v_BhRD.clone())
        else:
            lengths = [length for _, length in places]
            for cached, fresh in zip(self.held[owner], (k_BhRD, v_BhRD), strict=True):
                for (start, length), part in zip(places, fresh.split(lengths, 2), strict=True):
                    cached[:, :, start : start + length] = part
        return self.held[owner]


class ParallelAttention:
    """Attention of this rank's tokens to all tokens: Ulysses all-to-all, stale cache, ring or local attention, back.

    Tokens run in rank order and not in the model's: attention does not mind, and a mask is put in that order.
    """

    def __init__(self, mesh: Mesh, layout: TokenLayout, backend: Backend) -> None:
        self.ulysses = mesh["ulysses"]
        self.ring = mesh["ring"]
        self.layout = layout
        self.backend = backend

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
    ) -> torch.Tensor:
        """`F.scaled_dot_product_attention` of the local tokens of `streams`, BHLD, to all of theirs.

        owner: the attention module, or one of its calls, for the cache. seen: the streams attended to, if others.
        """
        if dropout_p or is_causal:
            raise RequestError(
                "Self-attention with dropout or a causal mask is not supported on shared tokens.",
                "Use ulysses=1, ring=1, pipefusion=1 and attention=native.",
            )
        seen = seen or streams
        if enable_gqa:
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        degree, layout, cache = self.ulysses.degree, self.layout, self.layout.forward.cache
        ranks = range(self.ring.index * degree, (self.ring.index + 1) * degree)
        lengths, seen_lengths = (self.group_lengths(names, ranks) for names in (streams, seen))
        every_segment = layout.slot.every_segment()
        columns = layout.running if cache is None else every_segment
        mask = None if attn_mask is None else self.local_mask(attn_mask, streams, seen, ranks, columns, query.shape[1])
        places = [] if cache is None else layout.cache_places(seen, ranks)
        by_rank = layout.lengths_by_rank(seen, running=columns)
        by_ring_rank = [sum(by_rank[start : start + degree]) for start in range(0, len(by_rank), degree)]

        def attend(part: int, q_BhRD: torch.Tensor, k_BhCD: torch.Tensor, v_BhCD: torch.Tensor) -> torch.Tensor:
            if cache is not None:
                whole = layout.running == every_segment
                k_BhCD, v_BhCD = cache.refresh((owner, part), places, whole, k_BhCD, v_BhCD)
            own_mask = mask if mask is None or mask.ndim < 4 or len(mask) == 1 else mask.chunk(parts)[part]
            if self.ring.degree > 1:
                attend_with_lse = self.backend.attend_with_lse
                return ring_attention(q_BhRD, k_BhCD, v_BhCD, by_ring_rank, self.ring, attend_with_lse, scale, own_mask)
            return self.backend.attend(q_BhRD, k_BhCD, v_BhCD, scale, own_mask) if q_BhRD.shape[2] else q_BhRD

        if degree == 1:
            parts = 1
            return attend(0, query, key, value)
        # Two halves of the batch: one is attended to while the other travels.
        parts = min(2, len(query))
        halves = zip(*(tensor.chunk(parts) for tensor in (query, key, value)), strict=True)
        arriving = [self.scatter_all(lengths, seen_lengths, *half) for half in halves]
        leaving = [self.gather_heads(lengths, attend(part, *arrived())) for part, arrived in enumerate(arriving)]
        return torch.cat([arrived() for arrived in leaving])

    def scatter_all(
        self,
        lengths: list[int],
        seen_lengths: list[int],
        q_BHLD: torch.Tensor,
        k_BHLD: torch.Tensor,
        v_BHLD: torch.Tensor,
    ) -> Callable[[], tuple[torch.Tensor, ...]]:
        """`scatter_heads` of queries, keys and values; keys may be of other tokens, and travel by themselves then."""
        if lengths == seen_lengths:
            return self.scatter_heads(lengths, q_BHLD, k_BHLD, v_BHLD)
        queries, seen = self.scatter_heads(lengths, q_BHLD), self.scatter_heads(seen_lengths, k_BHLD, v_BHLD)
        return lambda: (*queries(), *seen())

    def group_lengths(self, streams: tuple[str, ...], ranks: range) -> list[int]:
        """Tokens of these streams that each of these ranks of the sequence axis holds, of the running segments."""
        by_rank = self.layout.lengths_by_rank(streams)
        return [by_rank[rank] for rank in ranks]

    def local_mask(
        self,
        mask: torch.Tensor,
        streams: tuple[str, ...],
        seen: tuple[str, ...],
        ranks: range,
        columns: list[int],
        heads: int,
    ) -> torch.Tensor:
        """A mask over the whole streams joined (…, 1 or H, 1 or S, K), cut to this rank's heads and queries.

        Its columns are the keys of every rank, of the segments in `columns`, in rank order. Raises RequestError for a
        mask over anything else.
        """
        layout = self.layout
        tokens, keys = (sum(sum(layout.segments[stream]) for stream in names) for names in (streams, seen))
        if mask.shape[-1] != keys or mask.shape[-2] not in (1, tokens):
            raise RequestError(
                f"An attention mask of shape {tuple(mask.shape)} does not cover the {tokens} tokens.",
                "Use ulysses=1, ring=1 and pipefusion=1.",
            )
        every_rank = range(layout.axis.degree)
        mask = mask.index_select(-1, layout.token_order(seen, every_rank, columns, mask.device))
        if mask.shape[-2] != 1:
            mask = mask.index_select(-2, layout.token_order(streams, ranks, layout.running, mask.device))
        if mask.ndim > 2 and mask.shape[-3] == heads and heads > 1:
            mask = mask.chunk(self.ulysses.degree, -3)[self.ulysses.index]
        return mask

    def scatter_heads(self, lengths: list[int], *tensors_BHLD: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
        """Local tokens with all heads to the Ulysses group's tokens with a share of the heads: one all-to-all.

        Returns once it is under way; what it returns waits for it. The buffer runs token-first, so that what arrives
        already lies in rank order and nothing is unpacked.
        """
        degree = self.ulysses.degree
        batch, heads, local_tokens, head_dim = tensors_BHLD[0].shape
        send = tensors_BHLD[0].new_empty(degree, local_tokens, len(tensors_BHLD), batch, heads // degree, head_dim)
        for index, tensor in enumerate(tensors_BHLD):
            send[:, :, index] = tensor.unflatten(1, (degree, -1)).permute(1, 3, 0, 2, 4)
        arrive = self.exchange(send.flatten(0, 1), [local_tokens] * degree, lengths)
        return lambda: tuple(arrive().permute(1, 2, 3, 0, 4))

    def gather_heads(self, lengths: list[int], out_BhRD: torch.Tensor) -> Callable[[], torch.Tensor]:
        """The inverse of `scatter_heads` for one tensor."""
        degree = self.ulysses.degree
        local_tokens = lengths[self.ulysses.index]
        arrive = self.exchange(out_BhRD.permute(2, 0, 1, 3).contiguous(), lengths, [local_tokens] * degree)

        def local() -> torch.Tensor:
            out_BLUhD = arrive().unflatten(0, (degree, local_tokens)).permute(2, 1, 0, 3, 4)
            return out_BLUhD.flatten(2, 3).transpose(1, 2)

        return local

    def exchange(self, send: torch.Tensor, to: list[int], of: list[int]) -> Callable[[], torch.Tensor]:
        """An all-to-all of rows, under way; so many `to` each rank of the Ulysses group, and so many `of` each."""
        received = send.new_empty(sum(of), *send.shape[1:])
        work = dist.all_to_all_single(received, send, of, to, group=self.ulysses.group, async_op=True)

        def arrive(_sent: torch.Tensor = send) -> torch.Tensor:  # held until it is delivered
            with self.ulysses.timeline.communication("all_to_all"):
                if work is not None:  # none only where a rank is outside of the group
                    work.wait()
            return received

        return arrive


class AttentionSeam(TorchFunctionMode):
    """While entered, hands the `F.scaled_dot_product_attention` calls of the running module to `attention`."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return attend_by(self.attention, *args, **(kwargs or {}))  # pyright: ignore[reportArgumentType] (disable's own)


@torch.compiler.disable  # where a script has compiled the model by itself: its graph ends here
def attend_by(attention: Attention, *args: Any, **kwargs: Any) -> torch.Tensor:
    return attention.attends[attention.turn()](*args, **kwargs)


def install_attention(block: torch.nn.Module, path: str, attends: Sequence[Attend], hooks: Hooks) -> None:
    """Runs the attention arithmetic of a module in a block by `attends`, see Attention; its projections and norms stay
    its own. In a compiled block it is an operator that does so: torch traces no methods of tensors within a mode.

    A module that does its arithmetic elsewhere would see its own tokens only: that is an error, never a wrong image.
    """
    module, attention = block.get_submodule(path), Attention(path, attends)
    seam = AttentionSeam(attention)

    def enter(*_: object) -> None:
        attention.calls = 0
        if RUNNING.compiles:
            RUNNING.module = attention
        else:
            seam.__enter__()

    def leave(_module: torch.nn.Module, _args: tuple, output: object) -> None:
        if RUNNING.compiles:
            RUNNING.module = None
        else:
            seam.__exit__(None, None, None)
        if output is not None and not attention.calls:
            raise RuntimeError(f"{type(module).__name__} does not attend through scaled_dot_product_attention.")

    hooks.before(module, enter)
    hooks.after(module, leave, always_call=True)
    hooks.replace(module, ATTENTION, attention)
