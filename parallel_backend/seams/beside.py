"""Work of a block beside its attention, done while what attention exchanges travels.

In blocks with parallel linear layers (https://arxiv.org/abs/2302.05442) the MLP is given what queries, keys and values
are made of. Its layers are put off: what they return is computed once it is read, or once attention has sent what it
sends, whichever is first. Shapes: B batch, L local tokens, C a layer's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ..compat import tree_map_only
from ..hooks import Hooks
from ..models.overlap_rows import first_rows, is_plain, present
from .attention_op import RUNNING
from .forward import ForwardSlot

CHANNEL_DIM = -1


class Later:
    """A tensor that is computed when it is read, by torch's functions or by methods of its own."""

    def __init__(self, compute: Callable[[], torch.Tensor]) -> None:
        self.compute: Callable[[], torch.Tensor] | None = compute
        self.computed: torch.Tensor | None = None

    def get(self) -> torch.Tensor:
        if self.computed is None:
            assert self.compute
            self.computed, self.compute = self.compute(), None  # with which goes what it is computed of
        return self.computed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.split:
            return args[0].split(*args[1:], **(kwargs or {}))
        args, kwargs = tree_map_only(Later, Later.get, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.get(), name)


def by_method(name: str) -> Callable[..., torch.Tensor]:
    return lambda later, *args: getattr(later.get(), name)(*args)


for operator in ("getitem", "neg", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"):
    setattr(Later, f"__{operator}__", by_method(f"__{operator}__"))


class Split(Later):
    """What a layer makes of its tokens in its first rows, which is there, and in the others. first: BLC."""

    def __init__(self, first: torch.Tensor, others: Later, rows: int) -> None:
        """rows: of the layer."""
        super().__init__(lambda: torch.cat((first, others.get()), CHANNEL_DIM))
        self.first = first
        self.others = others
        self.shape = torch.Size((*first.shape[:-1], rows))

    def split(self, sizes: Sequence[int] | int, dim: int = 0) -> Sequence[torch.Tensor | Later]:
        """As torch's; between the first rows and the others, nothing more is computed."""
        own, last = self.first.shape[-1], len(self.shape) - 1
        if dim in (CHANNEL_DIM, last) and sizes in ([own, self.shape[-1] - own], (own, self.shape[-1] - own)):
            return self.first, self.others
        return self.get().split(sizes, dim)


class LinearInPlace(TorchFunctionMode):
    """While entered, `linear` is called in place of `F.linear`."""

    def __init__(self, linear: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = linear

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return (self.linear if func is F.linear else func)(*args, **(kwargs or {}))


class Beside:
    """The hooks that put such layers of one block off.

    rows: of the layers by path, those that the block has, what their rows are of (`overlap_rows.OTHER`). width: of all
    heads, of which keys have as many as queries.
    """

    def __init__(self, block: torch.nn.Module, rows: Mapping[str, str], width: int, slot: ForwardSlot) -> None:
        self.block = block
        self.layers = present(block, rows)
        self.first = {path: first_rows(rows[path], width) for path in self.layers}
        self.slot = slot
        self.while_running = Hooks()  # a compiled block would have a graph of its own for each layer's

    def install(self, hooks: Hooks) -> None:
        if self.layers:
            hooks.before(self.block, self.enter)
            hooks.after(self.block, self.leave, always_call=True)

    def enter(self, *_: object) -> None:
        if RUNNING.compiles or torch.compiler.is_compiling():
            return
        for path, layer in self.layers.items():
            put_off = partial(self.others, layer, first) if (first := self.first[path]) else self.whole
            self.while_running.replace(layer, "forward", partial(put_off, layer.forward))

    def leave(self, *_: object) -> None:
        self.while_running.remove()
        self.slot.forward.later.clear()

    def whole(self, forward: Callable[..., torch.Tensor], x: torch.Tensor | Later) -> Later:
        """A layer's own forward, later."""
        return self.later(lambda: forward(x.get() if isinstance(x, Later) else x))

    def others(self, layer: torch.nn.Module, first: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A layer's own forward, whose rows from `first` on come later. Not of weights that are no plain rows, as
        quantised ones may be, or that are on the device for this call alone: then all of it is there."""

        def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
            if not (is_plain(x) and is_plain(weight)) or layer.weight.device != x.device:
                return F.linear(x, weight, bias)
            own, beside = ((weight[part], None if bias is None else bias[part]) for part in parts)
            return Split(F.linear(x, *own), self.later(partial(F.linear, x, *beside)), len(weight))

        parts = slice(first), slice(first, None)
        with LinearInPlace(linear):
            return forward(*args, **kwargs)

    def later(self, compute: Callable[[], torch.Tensor]) -> Later:
        made = Later(compute)
        self.slot.forward.later.append(made)
        return made
