"""Counts what a forward of a model costs, by running the model's own code on tensors without memory.

Every operation runs on the meta device: shapes are right, and nothing is computed. FLOPs count matrix products and
attention, as torch's flop counter does. Bytes count what all other operations read and write.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry, sdpa_flop

from ..compat import DispatchMode, list_tensors, packet_of
from ..hooks import Hooks
from ..models.checks import attention_sizes_of, modules_at
from ..models.spec import BlockList, spec_of
from .memory import one_device_bytes

META = torch.device("meta")
CONVOLUTIONS = (torch.nn.functional.conv2d, torch.nn.functional.conv3d)
NORMS = (torch.nn.functional.rms_norm, torch.nn.functional.layer_norm)
_counting = threading.Lock()  # layers are replaced while counting


class Cost(NamedTuple):
    """linear, attention: FLOPs of linear layers and other products, and of attention.
    moved: bytes that other operations read and write.
    operations: how many operations there are."""

    linear: float = 0.0
    attention: float = 0.0
    moved: float = 0.0
    operations: float = 0.0


def add_up(*costs: Cost) -> Cost:
    return Cost(*map(sum, zip(*costs, strict=True)))


@dataclass(frozen=True)
class ForwardCost:
    """The cost of a forward of one row of a batch, on one rank by itself.

    blocks: the cost of all blocks; there are `count` of them.
    rest: the cost before and after the blocks. Every rank pays it in full.
    activation: the bytes of all tokens between two blocks (A of `tests/support/fakes/formulas.py`).
    peak: bytes beside the weights on one device, see `memory`.
    prediction: bytes of the result.
    heads: attention heads.
    kv: key heads per query head; below one in models with grouped queries.
    exchanges: how many convolutions and norms exchange rows, in a class whose ranks share a picture in bands of rows; 0
    in others. They send few bytes. Its blocks are all of the model; `count` and `activation` are of those with
    attention.
    itemsize: bytes of a number of the tokens.
    size: of the latents, without the batch; () if not known.
    gathers: how often all tokens between two blocks are gathered for nodes' code.
    """

    blocks: Cost
    rest: Cost
    count: int
    activation: float
    peak: float
    prediction: float
    heads: int
    kv: float = 1.0
    exchanges: int = 0
    itemsize: float = 2.0
    size: tuple[int, ...] = ()
    gathers: int = 0

    @property
    def flops(self) -> float:
        return sum(each.linear + each.attention for each in (self.blocks, self.rest))


@dataclass(frozen=True)
class Work:
    """What a model has to compute at a time: `parts` of one size that can be computed independently.

    has_branches: whether some parts are cond and others uncond.
    splits_tokens, splits_rows: whether the nodes' functions allow sharing the tokens, or the rows of a call.
    parallel_calls: if they do not allow the latter, how many calls may run at the same time.
    forward: the cost of one part, if known.
    calls: in how many calls the parts come. loops: whether the ranks run the whole loop. chosen: how nodes make the
    model compute: compiled blocks, an attention kernel.
    """

    parts: int = 1
    has_branches: bool = False
    splits_tokens: bool = True
    splits_rows: bool = True
    parallel_calls: int = 1
    forward: ForwardCost | None = None
    calls: int = 1
    loops: bool = False
    chosen: str = ""

    @classmethod
    def of(cls, rows: Sequence[int], branches: Sequence[Sequence[int]]) -> Work:
        """rows: the number of rows in each call. branches: the branch of each row of a call, in order; 0 is cond."""
        known = {branch for each in branches for branch in each}
        apart = len(branches) == 1 or all(len(set(each)) == 1 for each in branches)
        return cls(len(rows) * math.gcd(*rows), has_branches=apart and len(known) > 1, calls=len(rows))

    @property
    def cost(self) -> ForwardCost:
        """The cost of one part, which must be known."""
        assert self.forward
        return self.forward

    def count_calls(self, own_rows: float) -> int:
        """Returns how many of the calls a batch group with so many of all parts computes."""
        return max(1, round(self.calls * own_rows / self.parts))


class AttentionCounter(TorchFunctionMode):
    """Counts attention as one operation, because the meta device runs a decomposition that no GPU runs. It also widens
    the input of a norm over a condition whose width was unknown, and finds what a model has kept for equal inputs."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in NORMS and args[0].shape[-1] != (width := tuple(args[1])[-1]):
            args = (args[0].new_empty((*args[0].shape[:-1], width)), *args[1:])
        if func is torch.equal:  # tensors without memory are equal if their shapes are
            return args[0].shape == args[1].shape
        if func is torch.nn.functional.group_norm or func in CONVOLUTIONS and args[1].shape[-2] > 1:
            self.tally.exchanges += 1
        if func is torch.nn.functional.scaled_dot_product_attention:
            return self.tally.attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Tally(DispatchMode):
    """Adds up what runs while entered. inside: how many nested blocks are running. exchanges: see `ForwardCost`."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.rest = Cost(), Cost()
        self.inside = self.count = self.exchanges = 0
        self.streams = self.numbers = 0.0  # bytes and numbers after each block
        self.known: dict[Any, tuple[Cost, Any]] = {}

    def add(self, **amounts: float) -> None:
        """Adds one operation. amounts: by name of `Cost`."""
        operation = Cost(**amounts, operations=1)
        if self.inside:
            self.blocks = add_up(self.blocks, operation)
        else:
            self.rest = add_up(self.rest, operation)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Adds attention, and returns its result."""
        whole = (*query.shape[:-2], *key.shape[-2:])  # grouped queries: expand keys to the query heads
        self.add(attention=sdpa_flop(query.shape, whole, (*whole[:-1], value.shape[-1])))
        return query.new_empty((*query.shape[:-1], value.shape[-1]))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        packet, kwargs = packet_of(func), kwargs or {}
        if packet not in flop_registry:
            with self:  # in inference mode, composite operations such as linear arrive whole
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **kwargs)
        if packet in flop_registry:
            batched = packet in (torch.ops.aten.bmm, torch.ops.aten.baddbmm)  # attention written out as products
            flops = flop_registry[packet](*args, **kwargs, out_val=result)
            self.add(**{"attention" if batched else "linear": flops})
        elif (made := list_tensors(result)) and not func.is_view:
            self.add(moved=sum(each.nbytes for each in (*list_tensors(args), *made)))
        return result

    def run_block(self, forward: Callable[..., Any], kind: Any, returned: int | None, *args: Any, **kwargs: Any) -> Any:
        """Runs a block's forward. Of blocks with the same structure and input shapes, only one runs. The others count
        the same and return the same. returned: see `count_returned`."""
        key = (kind, *((*each.shape, each.dtype) for each in list_tensors((args, [*kwargs.values()]))))
        self.count += not self.inside
        if key not in self.known:
            before, self.blocks = self.blocks, Cost()
            self.inside += 1
            result = forward(*args, **kwargs)
            self.inside -= 1
            self.known[key], self.blocks = (self.blocks, result), before
        taken, result = self.known[key]
        self.blocks = add_up(self.blocks, taken)
        if not self.inside:
            streams = list_tensors(result if returned is None else result[:returned])
            self.streams += sum(each.nbytes for each in streams)
            self.numbers += sum(each.numel() for each in streams)
        return result


def plain_linear(layer: torch.nn.Linear, given: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Runs a linear layer, in whatever form its weights are kept. The input may be too narrow if the width of a
    condition is unknown. Then it is widened."""
    if given.shape[-1] != layer.in_features:
        given = given.new_empty((*given.shape[:-1], layer.in_features))
    weight = given.new_empty((layer.out_features, layer.in_features))
    bias = None if layer.bias is None else given.new_empty(layer.out_features)
    return torch.nn.functional.linear(given, weight, bias)


def count_returned(blocks: BlockList) -> int | None:
    """Returns how many of the values that a block returns have tokens, if others follow; else None, for all."""
    returns = blocks.returns
    return (returns.index(None) or None) if isinstance(returns, tuple) and None in returns else None


def count_forward(
    model: torch.nn.Module, run: Callable[[], Any], rows: int, *, peak: float | None = None, size: tuple[int, ...] = ()
) -> ForwardCost:
    """Returns the cost of a forward, per row.

    model: on the meta device. It may be elsewhere if `run` gives it tensors of that device without memory.
    run: calls the model with tensors on the meta device, with `rows` rows in all, and returns its result.
    peak: bytes beside the weights for one row, if the model states them.
    size: of one row's latents, if known.
    Raises whatever the model's code raises when it looks at values.
    """
    spec = spec_of(type(model))
    bands = spec.bands if spec and not spec.unshared else None
    lists = spec.blocks if spec and not bands else ()
    blocks = {block: count_returned(each) for each in lists for block in modules_at(model, each.path)}
    if bands:
        blocks = {model.get_submodule(path.rpartition(".")[0]): None for path in bands.attention_paths(model)}
    heads, _, kv_heads = attention_sizes_of(model, spec) if spec and spec.attends else (1, 0, None)
    tally = Tally()
    with _counting, Hooks() as hooks:
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                hooks.replace(layer, "forward", functools.partial(plain_linear, layer))
        for block, returned in blocks.items():
            kind = (type(block), *((name, each.shape) for name, each in block.named_parameters()))
            hooks.replace(block, "forward", functools.partial(tally.run_block, block.forward, kind, returned))
        for mode in (torch.no_grad(), META, AttentionCounter(tally), tally):
            hooks.enter_context(mode)
        result = run()
    result_bytes = sum(each.nbytes for each in list_tensors(getattr(result, "sample", result)))
    blocks_cost, rest = (
        Cost(*(amount / rows for amount in own[:-1]), operations=own.operations) for own in (tally.blocks, tally.rest)
    )
    if bands:
        blocks_cost, rest = add_up(blocks_cost, rest), Cost()
    count = max(1, tally.count)
    activation = tally.streams / count / rows
    return ForwardCost(
        blocks_cost,
        rest,
        count=count,
        activation=activation,
        peak=one_device_bytes(activation) if peak is None else peak,
        prediction=result_bytes / rows,
        heads=heads,
        kv=(kv_heads or heads) / heads,
        exchanges=tally.exchanges if bands else 0,
        itemsize=tally.streams / max(1.0, tally.numbers) or ForwardCost.itemsize,
        size=size,
    )
