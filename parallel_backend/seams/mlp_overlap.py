"""MLP overlap: a block's MLP is computed while attention's tokens travel.

In blocks with parallel linear layers (https://arxiv.org/abs/2302.05442) the MLP reads the same input as attention. Its
layers are deferred: they are computed when their output is read or when attention has sent its tokens, whichever is
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ..hooks import NOTHING, Hooks, ReplaceFunction
from ..models.parallel_mlp import split_rows, submodules
from ..models.spec import OTHER
from .attention_op import RUNNING
from .deferred import Deferred, DeferredTail
from .forward import ForwardSlot


class MlpOverlap:
    """The hooks that defer the MLP's layers of one block. rows: `BlockList.parallel_mlp`. Layers that the block lacks
    are ignored. width: of all heads. There are as many key heads as query heads."""

    def __init__(self, block: torch.nn.Module, rows: Mapping[str, str], width: int, slot: ForwardSlot) -> None:
        self.block = block
        self.layers = submodules(block, rows)
        # How many of a layer's rows are for attention.
        self.first = {path: width * len(rows[path].removesuffix(OTHER)) for path in self.layers}
        self.slot = slot
        # While the block runs: in a compiled one, each layer's hook would need a graph of its own.
        self.replaced: list[tuple[torch.nn.Module, Any]] = []

    def install(self, hooks: Hooks) -> None:
        if self.layers:
            hooks.before(self.block, self.enter)
            hooks.after(self.block, self.leave, always_call=True)

    def enter(self, *_: object) -> None:
        if RUNNING.compiles or torch.compiler.is_compiling():
            return
        for path, layer in self.layers.items():
            run = partial(self.defer_others, layer, first) if (first := self.first[path]) else self.defer_layer
            own = vars(layer)  # torch's way to set an attribute takes ten times as long
            self.replaced.append((layer, own.get("forward", NOTHING)))
            own["forward"] = partial(run, layer.forward)

    def leave(self, *_: object) -> None:
        while self.replaced:
            layer, before = self.replaced.pop()
            if before is NOTHING:
                del vars(layer)["forward"]
            else:
                vars(layer)["forward"] = before
        self.slot.forward.deferred.clear()

    def defer_layer(self, forward: Callable[..., torch.Tensor], x: torch.Tensor | Deferred) -> Deferred:
        """Defers a layer's own forward."""
        return self.defer(lambda: forward(x.get() if isinstance(x, Deferred) else x))

    def defer_others(
        self, layer: torch.nn.Module, first: int, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Runs a layer's own forward, with the rows from `first` on deferred. All rows are computed at once if the
        weight cannot be split there, or if it is on the device for this call only.

        An input that the layer has quantised is used for both parts."""

        def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
            parts = split_rows(weight, first) if layer.weight.device == x.device else None
            if parts is None:
                return F.linear(x, weight, bias)
            (own, others), biases = parts, (None, None) if bias is None else (bias[:first], bias[first:])
            rest = self.defer(partial(F.linear, x, others, biases[1]))
            return DeferredTail(F.linear(x, own, biases[0]), rest, len(weight))

        with ReplaceFunction(F.linear, linear):
            return forward(*args, **kwargs)

    def defer(self, compute: Callable[[], torch.Tensor]) -> Deferred:
        deferred = Deferred(compute)
        self.slot.forward.deferred.append(deferred)
        return deferred
