"""Attention of a model's module over shared tokens, as its block's spec describes it; and over tokens of which a rank
has all.

A module that attends to shared tokens in another way than its spec says raises an error.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import RequestError
from ..models.attention_sizes import AttentionSizes
from ..models.spec import BlockList, names
from .attention import ParallelAttention
from .attention_op import plain_attention
from .kernels.backends import Backend


class ModuleAttention:
    """Computes one attention call of a model's module, in place of `F.scaled_dot_product_attention`: without padding,
    with unrepeated keys, under the whole model's mask.

    call: the streams that attend, see `BlockList.attention`. sizes: of the model.
    """

    def __init__(
        self,
        attention: ParallelAttention,
        model: torch.nn.Module,
        module: torch.nn.Module,
        blocks: BlockList,
        path: str,
        call: str,
        sizes: AttentionSizes,
    ) -> None:
        streams, _, seen = call.partition("|")
        self.attention, self.layout, self.sizes = attention, attention.layout, sizes
        self.streams, self.seen = names(streams), names(seen or streams)
        self.owner = (module, call)
        self.place = f"{type(model).__name__}: {f'{path} of {blocks.path}' if path else blocks.path}"
        self.keeps_keys, self.gathers_mask = bool(blocks.kept), blocks.local_masks.get(path) == ""
        reach = blocks.local_masks.get(path)
        self.reach: int | None = getattr(module, reach) if reach else None

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        *args: Any,
        **more: Any,
    ) -> torch.Tensor:
        layout, kept = self.layout, ()
        if self.gathers_mask and attn_mask is not None:
            attn_mask = self.gather_mask(attn_mask)
        elif self.reach is not None:
            attn_mask = self.window(self.reach, query.device)
        if self.keeps_keys:  # the first keys are kept: every rank has them
            count = layout.forward.kept
            kept = (key[..., :count, :], value[..., :count, :])
            key, value = key[..., count:, :], value[..., count:, :]
        self.check(query, key)
        if self.sizes.kv_heads:  # the module may have repeated them
            group = key.shape[1] // self.sizes.kv_heads
            key, value = key[:, ::group], value[:, ::group]
        query = layout.drop_padding(query, self.streams, -2)
        key, value = (layout.drop_padding(each, self.seen, -2) for each in (key, value))
        given = (self.owner, self.streams, query, key, value, attn_mask, *args)
        return layout.put_padding(self.attention(*given, seen=self.seen, kept=kept, **more), self.streams, -2)

    def check(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """Raises RequestError, on every rank alike, if the call has other tokens or heads than the spec says."""
        calls = (("attends from", self.streams, query.shape[-2]), ("attends to", self.seen, key.shape[-2]))
        for what, own, tokens in calls:
            if not self.layout.is_local(own, tokens):
                raise RequestError(
                    f"{self.place} {what} {tokens} tokens, and `attention` says {'+'.join(own)}; this rank has "
                    f"{self.layout.describe_local()}.",
                    "List its streams in `attention`, as parallel_backend/models/README.md says, or use ulysses=1 and "
                    "ring=1.",
                )
        heads, kv_heads = self.sizes.heads, self.sizes.kv_heads or key.shape[1]
        if query.shape[1] != heads or key.shape[1] not in (heads, kv_heads):
            raise RequestError(
                f"{self.place} has {query.shape[1]} heads and {key.shape[1]} of keys, and {heads} and {kv_heads} were "
                "read off it.",
                "Correct parallel_backend/models/attention_sizes.py, or use ulysses=1 and ring=1.",
            )

    def gather_mask(self, local: torch.Tensor) -> torch.Tensor:
        """Returns the mask over all ranks' keys, gathered once per forward. Masks of tokens that do not run are kept
        from the first forward, which has all tokens."""
        name, forward = f"mask.{self.seen}", self.layout.forward
        mask = forward.once(name, lambda: self.layout.gather(local, self.seen, -1, name))
        return forward.cache.masks.setdefault(self.owner, mask) if forward.cache else mask

    def window(self, reach: int, device: torch.device) -> torch.Tensor:
        """Returns the mask that shows tokens at most `reach` away."""

        def compute() -> torch.Tensor:
            positions = torch.arange(self.layout.total(self.streams), device=device)
            return ((positions[:, None] - positions).abs() <= reach)[None, None]

        return self.layout.forward.once(f"window.{self.streams}.{reach}", compute)


def attend_locally(
    kernel: Backend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Computes `F.scaled_dot_product_attention` of queries BHLD to keys BHSD by the plan's kernel, on a rank that has
    all tokens. With dropout or a causal mask, which the others do not take, torch's own kernel runs."""
    if dropout_p or is_causal:
        more = {"scale": scale, "enable_gqa": enable_gqa}
        return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, **more)
    if (group := query.shape[1] // key.shape[1]) > 1:
        key, value = (each.repeat_interleave(group, 1) for each in (key, value))
    return kernel.attend(query, key, value, scale, attn_mask)
