"""Hidden states that travel in place of queries, keys and values, in models that are called from outside.

A forward for which nodes have patched attention exchanges by heads: such a patch sees all heads of this rank's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...errors import PlanError, RequestError
from ...models.comfyui.spec import ALWAYS_WHOLE, BlockList, names
from ...plan import HIDDEN, ParallelPlan
from ..exchange.hidden import HiddenExchange, OwnHeads, own_heads

# What nodes have run in attention's place, and around it.
OVERRIDE, PATCHES, OF_ATTENTION = "optimized_attention_override", "patches", "attn"
ADVICE = "Use exchange=heads."


class FilledHidden:
    """plan: which exchange. computed_in: dtypes of weights whose values are of another yet."""

    def __init__(
        self, plan: ParallelPlan, exchange: HiddenExchange, computed_in: Mapping[torch.Tensor, torch.dtype]
    ) -> None:
        self.plan = plan
        self.exchange = exchange
        self.computed_in = computed_in
        self.compiled = False

    def of(self, block: torch.nn.Module, blocks: BlockList) -> list[OwnHeads]:
        """What has the block's attention see all tokens and this rank's heads, where that is what the plan has."""
        once = {path: names(each) if isinstance(each, str) else () for path, each in blocks.attention.items()}
        modules = [(block.get_submodule(path), blocks.projections.get(path), seen) for path, seen in once.items()]
        return own_heads(self.plan, modules, self.exchange, lambda weight: self.computed_in.get(weight, weight.dtype))

    def compile(self, compiled: bool) -> None:
        """Whether blocks are compiled from now on, whose graphs have no place for it. Raises PlanError."""
        if compiled and self.plan.exchange == HIDDEN:
            raise PlanError(f"exchange={HIDDEN} does not work in compiled blocks.", ADVICE, "exchange")
        self.compiled = compiled

    def enter(self, values: dict[str, Any], own: list[OwnHeads]) -> set[str]:
        """Decides about a block that gets these arguments, and changes them; which of them stay whole. Raises
        RequestError where nodes have patched what the plan asks for."""
        options = values.get(ALWAYS_WHOLE) or {}
        patched = OVERRIDE in options or any(name.startswith(OF_ATTENTION) for name in options.get(PATCHES, {}))
        if patched and self.plan.exchange == HIDDEN:
            raise RequestError(f"A node patches attention, which exchange={HIDDEN} has see other heads.", ADVICE)
        self.exchange.paused = patched or self.compiled
        if self.exchange.paused:
            return set()
        if any(each.spec.inputs for each in own):
            values[ALWAYS_WHOLE] = {**options, OVERRIDE: self.attend}
        return {name for each in own for name in each.spec.sides}

    def attend(
        self, attend: Callable[..., torch.Tensor], *args: Any, skip_output_reshape: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        """ComfyUI's attention, of whose result no more is believed than that it has heads in dim 1."""
        self.exchange.inside = True
        try:
            out_BHLD = attend(*args, skip_output_reshape=True, **kwargs)
        finally:
            self.exchange.inside = False
        return out_BHLD if skip_output_reshape else out_BHLD.transpose(1, 2).flatten(2)
