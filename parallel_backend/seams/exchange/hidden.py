"""The other exchange over the Ulysses axis: attention's input is gathered, and each rank projects it to the queries,
keys and values of its own heads; the result goes back by an all-to-all.

With A the bytes of all tokens, a rank sends A (N - 1) / N and A (N - 1) / N² a block, where queries, keys, values and
the result by themselves are 4 A (N - 1) / N²: at two ranks three quarters of it. Arithmetic is as much.

Within the module tokens are all there, in the model's order, and heads are this rank's. Shapes: B batch, L local
tokens, R all tokens, H heads, h local heads, D head dim, W width of the tokens, C = h × D.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ...errors import PlanError, RequestError
from ...groups.collectives import begin_gather
from ...groups.mesh import Axis
from ...hooks import Hooks
from ...models.projections import OTHER, QUERY, SLICEABLE, Projections, present
from ...plan import HIDDEN, OFF, ParallelPlan, hidden_sends_less
from ..arguments import Arguments
from ..backends import Backend
from ..layout import TOKEN_DIM, TokenLayout
from .ulysses import UlyssesExchange

Streams = tuple[str, ...]
Attend = Callable[..., torch.Tensor]  # as F.scaled_dot_product_attention
Arrive = Callable[[], torch.Tensor]


class HiddenExchange:
    """What the attention modules of a model share. heads, head_dim: of the whole model's attention.

    paused: queries, keys and values travel nevertheless. inside: attention's result may be of other tokens and heads
    than its queries.
    """

    def __init__(self, axis: Axis, layout: TokenLayout, backend: Backend, heads: int, head_dim: int) -> None:
        self.axis = axis
        self.layout = layout
        self.backend = backend
        self.heads = heads
        self.head_dim = head_dim
        self.ulysses = UlyssesExchange(axis)
        self.paused = False
        self.inside = False

    def gather(self, local_BLW: torch.Tensor, streams: Streams) -> Arrive:
        """All tokens of the streams, BRW, from every rank's; under way."""
        own = self.layout.drop_padding(local_BLW, streams, TOKEN_DIM)
        lengths = [self.layout.local_length(stream, self.axis.index) for stream in streams]
        parts = zip(own.split(lengths, TOKEN_DIM), streams, strict=True)
        arriving = [begin_gather(part, TOKEN_DIM, self.layout.total((name,)), self.layout.axis) for part, name in parts]
        return lambda: arriving[0]() if len(arriving) == 1 else torch.cat([each() for each in arriving], TOKEN_DIM)

    def give_back(self, out_BRC: torch.Tensor, streams: Streams, widths: Sequence[int]) -> torch.Tensor:
        """This rank's tokens with all heads, BLW, from all tokens with its own. widths: C by rank."""
        batch, _, width = out_BRC.shape
        by_rank = [[self.layout.local_length(name, rank) for name in streams] for rank in range(self.axis.degree)]
        lengths = [sum(each) for each in by_rank]
        if len(streams) == 1:
            send = out_BRC.transpose(0, 1).contiguous()
        else:  # from stream by stream to rank by rank
            send = out_BRC.new_empty(sum(lengths), batch, width)
            starts = [self.layout.total(streams[:place]) for place in range(len(streams))]
            parts = send.split([length for each in by_rank for length in each])
            for place, part in enumerate(parts):
                stream = place % len(streams)
                part.copy_(out_BRC.narrow(TOKEN_DIM, starts[stream], len(part)).transpose(0, 1))
                starts[stream] += len(part)
        own = lengths[self.axis.index]
        to, of = [length * batch * width for length in lengths], [own * batch * each for each in widths]
        received = self.ulysses.exchange(send.flatten(), to, of)().split(of)
        by_sender = [part.view(own, batch, each) for part, each in zip(received, widths, strict=True)]
        return self.layout.put_padding(torch.cat(by_sender, -1).transpose(0, 1), streams, TOKEN_DIM)


class OwnHeads:
    """The hooks that have one attention module see all tokens and this rank's heads.

    streams: those that it sees, in the order in which it joins them.
    """

    def __init__(self, module: torch.nn.Module, spec: Projections, streams: Streams, exchange: HiddenExchange) -> None:
        self.module = module
        self.spec = spec
        self.streams = streams
        self.exchange = exchange
        self.running = False
        self.while_running = Hooks()  # a compiled block would have a graph of its own for each layer's
        self.signature = inspect.signature(module.forward)
        self.kv_heads = getattr(module, spec.kv_heads[0]) if spec.kv_heads else exchange.heads
        group, dim = exchange.heads // self.kv_heads, exchange.head_dim
        own = exchange.axis.own(self.kv_heads)
        self.own_heads, self.own_kv_heads = (own.stop - own.start) * group, own.stop - own.start
        self.query_rows = (own.start * group * dim, own.stop * group * dim)
        self.key_rows = (own.start * dim, own.stop * dim)
        self.widths = [size * group * dim for size in exchange.axis.sizes(self.kv_heads)]
        self.layers, self.outputs = (present(module, paths) for paths in (spec.rows, spec.outputs))

    def why_not(self, dtypes: Callable[[torch.Tensor], torch.dtype]) -> str:
        """Why it cannot be; empty if it can. dtypes: of a weight, once it is computed with."""
        exchange = self.exchange
        if not min(exchange.axis.sizes(self.kv_heads)) or exchange.heads % self.kv_heads:
            return f"{self.kv_heads} heads of keys and values leave one of {exchange.axis.degree} ranks without any"
        for path, layer in self.layers.items():
            weight = layer.weight
            in_parts = hasattr(weight, "__tensor_flatten__")  # of several tensors
            if in_parts or dtypes(weight) not in SLICEABLE:
                return f"the weights of {path} are quantised, and rows cannot be taken of them"
            own = sum(self.rows_of(kind) for kind in self.spec.rows[path] if kind != OTHER)
            if own > len(weight) or (own < len(weight) and OTHER not in self.spec.rows[path]):
                return f"{path} has {len(weight)} rows in place of {own}"
        return "" if self.layers else "its projections are not where they were"

    def rows_of(self, kind: str) -> int:
        """So many rows of a layer have all queries, or all keys or values."""
        return (self.exchange.heads if kind == QUERY else self.kv_heads) * self.exchange.head_dim

    @property
    def pays(self) -> bool:
        """Whether it sends fewer bytes than queries, keys, values and the result do."""
        heads, dim = self.exchange.heads, self.exchange.head_dim
        width = next(iter(self.layers.values())).weight.shape[1]
        return hidden_sends_less(self.exchange.axis.degree, self.kv_heads / heads, width / (heads * dim))

    def install(self, hooks: Hooks) -> None:
        hooks.before(self.module, self.enter, with_kwargs=True)
        hooks.after(self.module, self.leave, always_call=True)
        for path, layer in self.outputs.items():
            hooks.before(layer, partial(self.take_back, tuple(self.spec.outputs[path].split("+"))))

    def enter(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        """Gives the module all tokens, and this rank's number of heads."""
        self.running = not self.exchange.paused
        if not self.running:
            return None
        self.count_heads(self.own_heads, self.own_kv_heads)
        for path, layer in self.layers.items():
            streams = tuple(self.spec.inputs[path].split("+")) if self.spec.inputs else ()
            project = partial(self.project, layer.forward, self.spec.rows[path], streams)
            self.while_running.replace(layer, "forward", project)
        given = Arguments(self.signature, args, kwargs)
        names = [name for name in self.spec.tokens if given.values.get(name) is not None]
        apart = len(names) == len(self.spec.tokens)
        arriving = {
            name: self.exchange.gather(
                given.values[name], tuple(self.spec.tokens[name].split("+")) if apart else self.streams
            )
            for name in names
        }
        self.exchange.layout.forward.catch_up()
        given.values.update({name: arrive() for name, arrive in arriving.items()})
        return given.passed()

    def leave(self, _module: Any, _args: tuple, output: Any) -> Any:
        running, self.running = self.running, False
        if not running:
            return output
        self.while_running.remove()
        self.count_heads(self.exchange.heads, self.kv_heads)
        if output is None or self.outputs or self.spec.inputs:
            return output
        return self.exchange.give_back(output, self.streams, self.widths)

    def count_heads(self, heads: int, kv_heads: int) -> None:
        spec, width = self.spec, heads * self.exchange.head_dim
        for names, count in ((spec.heads, heads), (spec.kv_heads, kv_heads), (spec.widths, width)):
            for name in names:
                setattr(self.module, name, count)

    def project(self, forward: Callable[..., Any], rows: str, streams: Streams, *args: Any, **kwargs: Any) -> Any:
        """A layer's own forward, of which this rank's rows are computed."""
        with OwnRows(partial(self.project_rows, rows, streams)) as seen:
            projected = forward(*args, **kwargs)
        if not seen.calls:
            raise RuntimeError(f"A layer of {type(self.module).__name__} does not project by F.linear.")
        return projected

    def project_rows(
        self, rows: str, streams: Streams, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> Any:
        """`F.linear` of all tokens to this rank's rows, and, where there are others, of its own tokens to those, which
        are computed while the tokens travel."""
        ranges, start = [], 0
        for kind in rows.removesuffix(OTHER):
            first, last = self.query_rows if kind == QUERY else self.key_rows
            ranges.append((start + first, start + last))
            start += self.rows_of(kind)

        def taken(tensor: torch.Tensor) -> torch.Tensor:
            parts = [tensor[first:last] for first, last in ranges]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        arrive = self.exchange.gather(x, streams) if streams else lambda: x
        others = F.linear(x, weight[start:], None if bias is None else bias[start:]) if OTHER in rows else None
        own = F.linear(arrive(), taken(weight), None if bias is None else taken(bias))
        return own if others is None else Projected(own, others)

    def attend(
        self,
        by_heads: Attend,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """`F.scaled_dot_product_attention` of all tokens in this rank's heads. by_heads: of this rank's tokens."""
        if not self.running:
            return by_heads(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if dropout_p or is_causal:
            raise RequestError("Self-attention with dropout or a causal mask is not supported on shared tokens.")
        tokens = self.exchange.layout.total(self.streams)
        if query.shape[1:3] != (self.own_heads, tokens):
            name = type(self.module).__name__
            raise RuntimeError(f"{name} attends to {tuple(query.shape)} where {self.own_heads} heads of {tokens} were.")
        if enable_gqa:
            group = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        if attn_mask is not None and attn_mask.ndim > 2 and attn_mask.shape[-3] == self.exchange.heads > 1:
            first = self.query_rows[0] // self.exchange.head_dim
            attn_mask = attn_mask.narrow(-3, first, self.own_heads)
        out_BhRD = self.exchange.backend.attend(query, key, value, scale, attn_mask)
        if not self.spec.inputs:
            return out_BhRD
        if not self.exchange.inside:
            raise RuntimeError(f"{type(self.module).__name__} reads heads from its queries after attention.")
        local_BLW = self.exchange.give_back(out_BhRD.transpose(1, 2).flatten(2), self.streams, self.widths)
        return local_BLW.unflatten(2, (self.exchange.heads, -1)).transpose(1, 2)

    def take_back(self, streams: Streams, _layer: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor] | None:
        """Gives a layer behind attention this rank's tokens with all heads."""
        return (self.exchange.give_back(*args, streams, self.widths),) if self.running else None


class OwnRows(TorchFunctionMode):
    """While entered, `linear` does what `F.linear` would."""

    def __init__(self, linear: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = linear
        self.calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.linear:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        return self.linear(*args, **(kwargs or {}))


class Projected:
    """What a layer makes of all tokens in some rows, and of this rank's in the others. It can be split there, and do
    nothing else."""

    def __init__(self, own: torch.Tensor, others: torch.Tensor) -> None:
        self.parts = (own, others)

    def split(self, sizes: Sequence[int], dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As torch's. Raises ValueError for another place."""
        if dim != -1 or len(sizes) != 2 or sizes[1] != self.parts[1].shape[-1]:
            raise ValueError(f"It is split to {sizes} in dim {dim}, and not behind queries, keys and values.")
        return self.parts


def own_heads(
    plan: ParallelPlan,
    modules: Sequence[tuple[torch.nn.Module, Projections | None, Streams]],
    exchange: HiddenExchange,
    dtypes: Callable[[torch.Tensor], torch.dtype],
) -> list[OwnHeads]:
    """Of the attention modules of a block, what has them see this rank's heads; none where heads are to travel.

    dtypes: of a weight, once it is computed with. Raises PlanError where the plan asks for it and it cannot be.
    """
    if not plan.may_gather_hidden:
        return []
    name = type(modules[0][0]).__name__ if modules else ""
    made = [OwnHeads(module, spec, streams, exchange) for module, spec, streams in modules if spec]
    reasons = [reason for each in made if (reason := each.why_not(dtypes))]
    if len(made) < len(modules):
        reasons.append(f"how {name} projects is not known here")
    if plan.compile != OFF:
        reasons.append("compiled blocks have no place for it")
    if plan.exchange == HIDDEN and reasons:
        raise PlanError(f"exchange={HIDDEN} does not work: {reasons[0]}.", "Use exchange=heads.", "exchange")
    return made if not reasons and (plan.exchange == HIDDEN or all(each.pays for each in made)) else []
