"""Which tokens of a model's blocks are whose, found by their values and compared with the spec.

Without attention a model works token by token. So new latents change the image's tokens alone, wherever they lie: in a
block's arguments, in what it returns, among the keys that are attended to. Latents whose sides are exchanged change
what is made of the image's places alone. Lengths cannot tell: two streams may be as long.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from parallel_backend.models.checks import modules_at
from parallel_backend.models.spec import BlockList, ModelSpec, Streams, names

KEYS = -2  # the dim of tokens in keys


@dataclass
class Run:
    """A call of a block."""

    blocks: BlockList
    given: dict[str, Any]
    keys: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    output: Any = None


class Tracer(TorchFunctionMode):
    """Records every call of a model's blocks while it is entered. Attention finds nothing meanwhile."""

    def __init__(self, model: torch.nn.Module, spec: ModelSpec) -> None:
        super().__init__()
        self.runs: list[Run] = []
        self.running: list[str] = []
        for blocks in spec.blocks:
            for block in modules_at(model, blocks.path):
                begin = partial(self.begin, blocks, inspect.signature(block.forward))
                block.register_forward_pre_hook(begin, with_kwargs=True)
                block.register_forward_hook(self.end)
                for path in blocks.attention:
                    module = block.get_submodule(path) if not path or getattr(block, path, path) is not None else None
                    if module is not None:
                        module.register_forward_pre_hook(lambda *_, path=path: self.running.append(path))
                        module.register_forward_hook(lambda *_: self.running.pop() and None)

    def begin(
        self, blocks: BlockList, signature: inspect.Signature, _block: torch.nn.Module, args: tuple, kwargs: dict
    ) -> None:
        self.runs.append(Run(blocks, signature.bind(*args, **kwargs).arguments))

    def end(self, _block: torch.nn.Module, _args: tuple, output: Any) -> None:
        self.runs[-1].output = output

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        if self.running:
            self.runs[-1].keys.append((self.running[-1], named["key"]))
        return named["query"].new_zeros(*named["query"].shape[:-1], named["value"].shape[-1])


def misplaced_streams(
    model: torch.nn.Module, spec: ModelSpec, call: Callable[[], object], moved: Callable[[], object],
    turned: Callable[[], object],
) -> list[str]:  # fmt: skip
    """Where a spec has a stream that lies elsewhere, and per-token arguments that it calls whole, in words. call: calls
    the model; `moved` with other latents, `turned` with latents whose sides are exchanged."""
    tracer, runs = Tracer(model, spec), []
    for each in (call, moved, turned):
        tracer.runs = []
        with torch.no_grad(), tracer:
            each()
        runs.append(tracer.runs)
    probe = Probe(spec)
    found = [said for three in zip(*runs, strict=True) for said in probe.compare(*three)]
    return list(dict.fromkeys(f"{spec.model_class}: {said}" for said in found))


class Probe:
    """lengths: of the streams, by what the blocks were given. image: the streams that latents change."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.lengths: dict[str, int] = {}
        self.image: set[str] = set()

    def compare(self, run: Run, moved: Run, turned: Run) -> Iterator[str]:
        blocks = run.blocks
        for name, streams in blocks.tokens.items():
            yield from self.learn(
                f"{name} of {blocks.path}", blocks.dim, streams, run.given.get(name), moved.given.get(name)
            )
        if blocks.returns is not None:
            pair = (run.output, moved.output)
            yield from self.follow(f"what {blocks.path} return", "returns", blocks.dim, blocks.returns, *pair)
        for (path, key), (_, other) in zip(run.keys, moved.keys, strict=True):
            streams = blocks.attention[path]
            (seen,) = {each.rpartition("|")[2] for each in ((streams,) if isinstance(streams, str) else streams)}
            where = f"{path or 'the block'} of {blocks.path}"
            yield from self.follow(f"what {where} attends to", "attention", KEYS, seen, key, other)
        for name, side in blocks.sides.items():
            if name in run.given and type(side) is tuple:  # with an entry for each token
                (dim, streams), pair = side, (run.given[name], turned.given[name])
                yield from self.follow(f"{name} of {blocks.path}", "sides", dim, streams, *pair, still=True)
        for name in blocks.whole:
            yield from self.follows_tokens(f"{name} of {blocks.path}", run.given.get(name), turned.given.get(name))

    def learn(self, what: str, dim: int, streams: Streams, value: Any, other: Any) -> Iterator[str]:
        """Learns lengths of streams, and which are the image's; of what is known compares the places."""
        for tensor, moved, each in parts(value, other, streams):
            known = [self.lengths[name] for name in names(each) if name in self.lengths]
            new = [name for name in names(each) if name not in self.lengths]
            if len(new) == 1:
                self.lengths[new[0]] = tensor.shape[dim] - sum(known)
                if len(names(each)) == 1 and changed(tensor, moved, dim).any():
                    self.image.add(each)
            if not new:
                yield from self.follow(what, "tokens", dim, each, tensor, moved)
        if self.spec.image and self.image and self.spec.image not in self.image:
            yield f"new latents change {'+'.join(self.image)}, and `image` says {self.spec.image}"

    def follow(
        self, what: str, field: str, dim: int, streams: Streams, value: Any, other: Any, still: bool = False
    ) -> Iterator[str]:
        """Compares the places that change with those of the image's streams. still: they may all stay as they are."""
        for tensor, moved, each in parts(value, other, streams):
            if any(name not in self.lengths for name in names(each)) or tensor.shape[dim] == 1 and still:
                continue
            if tensor.shape[dim] != (total := sum(self.lengths[name] for name in names(each))):
                yield f"{what} has {tensor.shape[dim]} entries, and `{field}` says {each}, which has {total}"
                continue
            rows = changed(tensor, moved, dim)
            sizes = [self.lengths[name] for name in names(each)]
            for name, own in zip(names(each), rows.split(sizes), strict=True):
                if self.image and own.any() != (name in self.image) and not (still and not rows.any()):
                    image = "the image is" if own.any() else "the image is not"
                    yield f"{what}: {image} where `{field}`, which says {each}, has {name}"

    def follows_tokens(self, what: str, value: Any, turned: Any) -> Iterator[str]:
        """Tensors with an entry for each token of some streams, that change with the places of the image."""
        lengths = {sum(self.lengths.values()): "+".join(self.lengths)}
        lengths |= {length: name for name, length in self.lengths.items()}
        for tensor, other, _ in parts(value, turned, "x"):
            streams = next((lengths[size] for size in tensor.shape if size in lengths), None)
            if streams and tensor.shape == other.shape and not torch.equal(tensor, other):
                yield f"{what} has an entry for each token of {streams}, and `whole` lists it"


def parts(value: Any, other: Any, streams: Streams | None) -> Iterator[tuple[torch.Tensor, torch.Tensor, str]]:
    """Each tensor of two alike values, with its streams."""
    if isinstance(value, torch.Tensor) and isinstance(streams, str):
        yield value, other, streams
    elif isinstance(value, (tuple, list)):
        each: Sequence[str | None] = streams if isinstance(streams, tuple) else (streams,) * len(value)  # pyright: ignore
        for item, match, own in zip(value, other, each, strict=True):
            yield from parts(item, match, own)


def changed(tensor: torch.Tensor, other: torch.Tensor, dim: int) -> torch.Tensor:
    """Whether an entry of this dim differs, (entries,)."""
    return (tensor != other).movedim(dim, 0).flatten(1).any(1)
