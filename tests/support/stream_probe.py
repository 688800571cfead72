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
from torch.utils.hooks import RemovableHandle

from parallel_backend.models.checks import modules_at
from parallel_backend.models.spec import BlockList, ModelSpec, Streams, names

KEYS = -2  # the dim of tokens in keys


@dataclass
class Run:
    """A call of a block. keys: by call of attention that the spec lists, its path there and what it attends to."""

    blocks: BlockList
    given: dict[str, Any]
    keys: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    output: Any = None


class Recorder(TorchFunctionMode):
    """Records the calls of a model's blocks while it is entered. attends: else attention finds nothing meanwhile.

    seen: by call of attention in a block, the innermost module in it that was running, queries and keys.
    """

    def __init__(self, model: torch.nn.Module, spec: ModelSpec, attends: bool) -> None:
        super().__init__()
        self.model, self.spec, self.attends = model, spec, attends
        self.seen: list[tuple[Run, str, torch.Tensor, torch.Tensor]] = []
        self.running: list[tuple[Run, str]] = []

    def __enter__(self) -> Recorder:
        self.runs: list[Run] = []
        self.hooks: list[RemovableHandle] = []
        for blocks in self.spec.blocks:
            for block in modules_at(self.model, blocks.path):
                signature = inspect.signature(block.forward)
                for path, module in block.named_modules():
                    enter = partial(self.enter, blocks, path, None if path else signature)
                    self.hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
                    self.hooks.append(module.register_forward_hook(self.leave))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self.hooks:
            hook.remove()
        super().__exit__(*error)

    def enter(
        self, blocks: BlockList, path: str, signature: inspect.Signature | None, _module: Any, args: tuple, kwargs: dict
    ) -> None:
        """signature: of the block, where the module is one."""
        if signature is not None:
            run = Run(blocks, signature.bind(*args, **kwargs).arguments)
            self.runs.append(run)
        else:
            run = self.running[-1][0] if self.running else Run(blocks, {})
        self.running.append((run, path))

    def leave(self, _module: torch.nn.Module, _args: tuple, output: Any) -> None:
        run, path = self.running.pop()
        if not path:
            run.output = output

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        if self.running:
            run, path = self.running[-1]
            self.seen.append((run, path, named["query"], named["key"]))
            if (own := listed(run.blocks, path)) is not None:
                run.keys.append((own, named["key"]))
        if self.attends:
            return func(*args, **(kwargs or {}))
        return named["query"].new_zeros(*named["query"].shape[:-1], named["value"].shape[-1])


def listed(blocks: BlockList, path: str) -> str | None:
    """The path in a spec's `attention` that a module of a block is, or lies in; None for none of them."""
    found = [own for own in blocks.attention if not own or f"{path}.".startswith(f"{own}.")]
    return max(found, key=len, default=None)


def misplaced_streams(
    model: torch.nn.Module, spec: ModelSpec, call: Callable[[], object], moved: Callable[[], object],
    turned: Callable[[], object],
) -> list[str]:  # fmt: skip
    """Where a spec has a stream that lies elsewhere, and per-token arguments that it calls whole, in words. call: calls
    the model; `moved` with other latents, `turned` with latents whose sides are exchanged."""
    recorder, runs = Recorder(model, spec, attends=False), []
    for each in (call, moved, turned):
        with torch.no_grad(), recorder:
            each()
        runs.append(recorder.runs)
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
