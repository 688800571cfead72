"""Counts what a forward of a model costs, by running the model's own code on tensors without memory.

Every operation runs on the meta device: shapes are right, and nothing is computed. FLOPs count matrix products and
attention, as torch's flop counter does. Bytes count what all other operations read and write.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry, sdpa_flop

from ..compat import DispatchMode, packet_of
from .memory import device_bytes

META = torch.device("meta")
NUMBERS_OF_A_GROUP = 3  # that ranks exchange for a group norm, see `seams/bands/norm.py`
WITH_EXCHANGE = (torch.nn.functional.conv2d, torch.nn.functional.conv3d, torch.nn.functional.group_norm)  # in bands
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


PLACES = {name: place for place, name in enumerate(Cost._fields)}  # of `Cost`


class BandCost(NamedTuple):
    """What ranks exchange in a forward of one row of a batch if they share its picture in bands of rows, besides
    attention.

    borders: bytes that a rank with two neighbours sends for convolutions.
    norms: bytes that a rank sends to each other rank for group norms.
    convolutions, group_norms: how many there are.
    """

    borders: float = 0.0
    convolutions: float = 0.0
    norms: float = 0.0
    group_norms: float = 0.0


@dataclass(frozen=True)
class ForwardCost:
    """The cost of a forward of one row of a batch, on one rank by itself.

    blocks: the cost of all blocks; there are `count` of them.
    rest: the cost before and after the blocks. Every rank pays it in full.
    activation: the bytes of all tokens between two blocks (A of `tests/support/fakes/formulas.py`).
    peak: bytes beside the weights on one device, see `memory`.
    prediction: bytes of the result.
    heads: attention heads.
    weights: bytes of all parameters.
    kv: key heads per query head; below one in models with grouped queries.
    itemsize: bytes of a number of the tokens.
    gathers: how often all tokens between two blocks are gathered for nodes' code.
    size: of the latents, without the batch; () if not known.
    bands: of a class whose ranks share a picture in bands of rows. Its blocks are all of the model; `count` and
    `activation` are of those with attention.
    """

    blocks: Cost
    rest: Cost
    count: int
    activation: float
    peak: float
    prediction: float
    heads: int
    weights: float
    kv: float = 1.0
    bands: BandCost | None = None
    itemsize: float = 2.0
    size: tuple[int, ...] = ()
    gathers: int = 0

    @property
    def flops(self) -> float:
        return sum(each.linear + each.attention for each in (self.blocks, self.rest))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ForwardCost:
        costs = {name: Cost(*values[name]) for name in ("blocks", "rest")}
        return cls(**{**values, **costs, "bands": values["bands"] and BandCost(*values["bands"])})


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
        if func in WITH_EXCHANGE:
            self.tally.add_exchange(func, *args, **(kwargs or {}))
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        query, key, value = (named[name] for name in ("query", "key", "value"))
        whole = (*query.shape[:-2], *key.shape[-2:])  # grouped queries: expand keys to the query heads
        flops = sdpa_flop(query.shape, whole, (*whole[:-1], value.shape[-1]))
        self.tally.add(attention=flops)
        return query.new_empty((*query.shape[:-1], value.shape[-1]))


class Tally(DispatchMode):
    """Adds up what runs while entered. inside: how many nested blocks are running."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.rest = ([0.0] * len(Cost._fields) for _ in range(2))
        self.inside = self.count = 0
        self.streams = self.numbers = 0.0  # bytes and numbers after each block
        self.known: dict[Any, tuple[list[float], Any]] = {}
        self.bands = BandCost()

    def add(self, **amounts: float) -> None:
        """Adds one operation. amounts: by name of `Cost`."""
        own = self.blocks if self.inside else self.rest
        own[PLACES["operations"]] += 1
        for name, value in amounts.items():
            own[PLACES[name]] += value

    def add_exchange(self, func: Any, given: torch.Tensor, other: Any, *args: Any, **kwargs: Any) -> None:
        """Adds what a convolution or group norm of a picture, or of frames (B, C, T, H, W), would exchange in
        bands of rows. other: the convolution's weight, or the number of groups."""
        borders, convolutions, norms, group_norms = self.bands
        if func is torch.nn.functional.group_norm:
            numbers = NUMBERS_OF_A_GROUP * other * len(given) * torch.float32.itemsize
            self.bands = BandCost(borders, convolutions, norms + numbers, group_norms + 1)
        elif edge := (other.shape[-2] - 1) // 2:
            rows = 2 * edge * given.nbytes / given.shape[-2]
            self.bands = BandCost(borders + rows, convolutions + 1, norms, group_norms)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if packet_of(func) not in flop_registry:
            with self:  # in inference mode, composite operations such as linear arrive whole
                parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        result = func(*args, **(kwargs or {}))
        results = [
            each for each in (result if isinstance(result, (tuple, list)) else (result,)) if torch.is_tensor(each)
        ]
        if (packet := packet_of(func)) in flop_registry:
            flops = flop_registry[packet](*args, **(kwargs or {}), out_val=result)
            batched = packet in (torch.ops.aten.bmm, torch.ops.aten.baddbmm)  # attention written out as products
            self.add(**{"attention" if batched else "linear": flops})
        elif results and not func.is_view:
            self.add(moved=sum(each.nbytes for each in (*tensors_in(args), *results)))
        return result

    def run_block(self, forward: Callable[..., Any], kind: Any, returned: int | None, *args: Any, **kwargs: Any) -> Any:
        """Runs a block's forward. Of blocks with the same structure and input shapes, only one runs. The others count
        the same and return the same. returned: see `count_forward`; None if all."""
        key = (kind, *((*each.shape, each.dtype) for each in tensors_in([args, list(kwargs.values())])))
        known = self.known.get(key)
        self.count += not self.inside
        if known is None:
            before = list(self.blocks)
            self.inside += 1
            try:
                result = forward(*args, **kwargs)
            finally:
                self.inside -= 1
            taken = [now - then for now, then in zip(self.blocks, before, strict=True)]
            known = self.known[key] = (taken, result)
        else:
            self.blocks = [own + more for own, more in zip(self.blocks, known[0], strict=True)]
        if not self.inside:
            streams = [*tensors_in(known[1] if returned is None else known[1][:returned])]
            self.streams += sum(each.nbytes for each in streams)
            self.numbers += sum(each.numel() for each in streams)
        return known[1]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)


def plain_linear(layer: torch.nn.Linear, given: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Runs a linear layer, in whatever form its weights are kept. The input may be too narrow if the width of a
    condition is unknown. Then it is widened."""
    if given.shape[-1] != layer.in_features:
        given = given.new_empty((*given.shape[:-1], layer.in_features))
    weight = given.new_empty((layer.out_features, layer.in_features))
    bias = None if layer.bias is None else given.new_empty(layer.out_features)
    return torch.nn.functional.linear(given, weight, bias)


@contextlib.contextmanager
def count_operations(
    model: torch.nn.Module, blocks: Sequence[torch.nn.Module], returned: Mapping[torch.nn.Module, int]
) -> Iterator[Tally]:
    """Counts what runs of the model while entered. These blocks are counted separately. returned: see
    `count_forward`."""
    tally = Tally()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_counting)
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                stack.enter_context(replace_attribute(layer, "forward", functools.partial(plain_linear, layer)))
        for block in blocks:
            kind = (type(block), *((name, each.shape) for name, each in block.named_parameters()))
            run = functools.partial(tally.run_block, block.forward, kind, returned.get(block))
            stack.enter_context(replace_attribute(block, "forward", run))
        for mode in (torch.no_grad(), META, AttentionCounter(tally), tally):
            stack.enter_context(mode)
        yield tally


@contextlib.contextmanager
def replace_attribute(owner: torch.nn.Module, name: str, value: Any) -> Iterator[None]:
    """Replaces an attribute of the object itself while entered."""
    own = vars(owner)
    before = own.get(name)
    own[name] = value
    try:
        yield
    finally:
        if before is None:
            own.pop(name, None)
        else:
            own[name] = before


def count_forward(
    model: torch.nn.Module,
    blocks: Sequence[torch.nn.Module],
    run: Callable[[], Any],
    *,
    rows: int,
    heads: int,
    kv_heads: int | None = None,
    returned: Mapping[torch.nn.Module, int] | None = None,
    peak: float | None = None,
    in_bands: bool = False,
    size: tuple[int, ...] = (),
) -> ForwardCost:
    """Returns the cost of a forward, per row.

    model: on the meta device. It may be elsewhere if `run` gives it tensors of that device without memory.
    run: calls the model with tensors on the meta device, with `rows` rows in all, and returns its result.
    returned: of blocks that also return other values: how many of the first ones have tokens.
    peak: bytes beside the weights for one row, if the model states them.
    in_bands: whether ranks share its picture in bands of rows. Then the blocks are those with attention.
    size: of one row's latents, if known.
    Raises whatever the model's code raises when it looks at values.
    """
    with count_operations(model, blocks, returned or {}) as tally:
        result = run()
    result_bytes = sum(each.nbytes for each in tensors_in(getattr(result, "sample", result)))
    weights = sum(each.numel() * each.itemsize for each in model.parameters())
    blocks_cost, rest = (
        Cost(*(amount / rows for amount in own[:-1]), operations=own[-1]) for own in (tally.blocks, tally.rest)
    )
    if in_bands:
        blocks_cost, rest = Cost(*map(sum, zip(blocks_cost, rest, strict=True))), Cost()
    exchanged = tally.bands._replace(borders=tally.bands.borders / rows, norms=tally.bands.norms / rows)
    count = max(1, tally.count)
    activation = tally.streams / count / rows
    return ForwardCost(
        blocks_cost,
        rest,
        count=count,
        activation=activation,
        peak=device_bytes(activation) if peak is None else peak,
        prediction=result_bytes / rows,
        heads=heads,
        weights=weights,
        kv=(kv_heads or heads) / heads,
        bands=exchanged if in_bands else None,
        itemsize=tally.streams / max(1.0, tally.numbers) or ForwardCost.itemsize,
        size=size,
    )
