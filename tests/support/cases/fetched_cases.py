"""A small model whose weights have what trips up those who fetch them."""

from __future__ import annotations

from collections.abc import Collection

import torch

from parallel_backend.weights.host_memory import HostMemory
from parallel_backend.weights.prefetcher import BlockPrefetcher
from parallel_backend.weights.stores import Arrive, HostStore, Store

CPU = torch.device("cpu")
WIDTH, BLOCKS = 9, 5  # no weight's bytes are a multiple of the alignment
SHARED = ("blocks.1.norm",)  # what the model reads outside of its block
POISON = 0xFF


class Block(torch.nn.Module):
    """Weights of several dtypes, a scalar, an empty one, one not contiguous, and one that another block has, too."""

    def __init__(self, tied: torch.nn.Parameter) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.scale = torch.nn.Parameter(torch.rand(()))
        self.halved = torch.nn.Parameter(torch.randn(WIDTH).bfloat16())
        self.counts = torch.nn.Parameter(torch.randint(1, 5, (WIDTH,), dtype=torch.int8), requires_grad=False)
        self.empty = torch.nn.Parameter(torch.empty(0, WIDTH))
        self.turned = torch.nn.Parameter(torch.randn(WIDTH, WIDTH + 1).T)
        self.tied = tied

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        mixed = self.norm(self.linear(x_BD)) * self.halved.float() * self.counts + x_BD * self.turned[1]
        return x_BD + self.scale * mixed.tanh() @ self.tied


class Model(torch.nn.Module):
    """skipped: blocks that a node has it skip. again: a block that a node has it run twice. ends_after: of which the
    forward ends early."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        tied = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))
        own = [torch.nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(BLOCKS)]
        self.blocks = torch.nn.ModuleList(Block(tied if index in (0, 3) else own[index]) for index in range(BLOCKS))
        self.head = torch.nn.Linear(WIDTH, 2)
        self.requires_grad_(False)
        self.skipped: Collection[int] = ()
        self.again = self.ends_after = -1

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        x_BD = x_BD + self.blocks[1].norm.weight
        for index, block in enumerate(self.blocks):
            if index not in self.skipped:
                x_BD = block(x_BD)
            if index == self.again:
                x_BD = block(x_BD)
            if index == self.ends_after:
                raise EarlyEnd
        return self.head(x_BD)


class EarlyEnd(Exception):
    """Ends a forward."""


class Told:
    """A store that writes down what is asked for. is_late: whether it arrives at the last moment, until when the buffer
    is poisoned, or at once."""

    def __init__(self, store: Store, is_late: bool = True) -> None:
        self.store, self.is_late = store, is_late
        self.fetched: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def fetch(self, place: int, buffer: torch.Tensor) -> Arrive:
        self.fetched.append(place)
        buffer.fill_(POISON)
        return self.store.fetch(place, buffer) if not self.is_late else lambda: self.store.fetch(place, buffer)()


def fetched_of(model: Model) -> BlockPrefetcher:
    return BlockPrefetcher(
        model, {f"blocks.{name}": block for name, block in model.blocks.named_children()}, CPU, SHARED
    )


def host_store(fetched: BlockPrefetcher, is_late: bool = True) -> Told:
    return Told(HostStore(fetched.sizes, CPU, HostMemory(HostStore.total(fetched.sizes))), is_late)


def run(model: Model, fetched: BlockPrefetcher, x_BD: torch.Tensor) -> torch.Tensor | None:
    """A forward; None where it ended early."""
    with torch.inference_mode(), fetched.forward(EarlyEnd):
        return model(x_BD)
    return None


def given(rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1))


def whole() -> torch.Tensor:
    with torch.inference_mode():
        return Model()(given())


def is_right(model: Model, fetched: BlockPrefetcher) -> bool:
    """Whether a forward gives the bits that whole weights give."""
    got = run(model, fetched, given())
    return got is not None and got.equal(whole())
