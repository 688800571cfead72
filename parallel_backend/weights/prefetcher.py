"""Blocks whose weights are elsewhere until they run: the whole of two at a time is on the device.

The parameters of such a block are views of one of two buffers, which these blocks take turns in; a buffer is filled
again once the block that was in it has run, while those behind it compute.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ..errors import RequestError
from ..groups.timeline import SILENT, Timeline
from ..hooks import Hooks
from .flat_block import FlatBlock, Values
from .parking import Parking
from .sizes import BUFFERS, NUMBER
from .stores import Arrive, Store


class BlockPrefetcher:
    """Of a rank's blocks, those that are fetched, in the order in which they run; none at first.

    A forward asks for each of them once, in this order, on every rank: also where a rank has nothing to compute
    (`serve`), a node has a block skipped, or the forward ends early. So ranks that share weights never wait for one
    another in vain. What a forward that failed had asked for arrives before the next.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        blocks: Mapping[str, torch.nn.Module],
        device: torch.device,
        shared: Sequence[str] = (),
        dtypes: Mapping[str, torch.dtype] | None = None,
        timeline: Timeline = SILENT,
    ) -> None:
        """blocks: by their paths. shared: submodules of blocks that the model reads outside of their block. dtypes: by
        name in the model, the dtypes that parameters are computed in where their values are of others yet. timeline:
        where what a forward waits for is recorded."""
        self.model = model
        self.paths = list(blocks)
        self.blocks = list(blocks.values())
        self.device = device
        self.shared = shared
        self.dtypes = dtypes or {}
        self.timeline = timeline
        self.hooks = Hooks()
        self.flat_blocks: dict[int, FlatBlock] = {}  # by the block's place, in order
        self.buffers: list[torch.Tensor] = []
        self.turns: dict[int, torch.Tensor] = {}  # of the buffers, where a row comes to
        self.store: Store | None = None
        self.elsewhere = 0  # how many bytes less are on the device than the parameters take
        self.asked = self.done = 0  # how many, in the running forward
        self.underway: deque[Arrive] = deque()

    def flatten_blocks(self, places: Iterable[int]) -> dict[int, FlatBlock]:
        """Of any blocks."""
        keep = {id(parameter) for parameter in find_shared_parameters(self.model, self.shared)}
        return {
            place: self.flat_blocks.get(place) or FlatBlock(self.paths[place], self.blocks[place], keep, self.dtypes)
            for place in sorted(places)
        }

    @property
    def sizes(self) -> list[int]:
        """The bytes of every flat block."""
        return [flat.size for flat in self.flatten_blocks(range(len(self.blocks))).values()]

    def names(self) -> Iterator[tuple[str, int, str]]:
        """Of what is fetched: each parameter's name in the model, its block's place, and its name there."""
        for place, flat in self.flat_blocks.items():
            for name in flat.names:
                yield f"{flat.path}.{name}", place, name

    def rearrange(
        self, places: Iterable[int], store: Store | None, values: Callable[[FlatBlock], Values] | None = None
    ) -> None:
        """Has these blocks fetched from a store, and no others. All ranks that share one call it together.

        values: of a block whose parameters have none. Raises as torch does where memory lacks; the model is of
        no use then.
        """
        self.await_fetches()
        flat_blocks = self.flatten_blocks(places) if store else {}
        buffers = self._make_buffers(flat_blocks, store)
        turns = {
            place: buffers[index % BUFFERS][: store.length(flat)]
            for index, (place, flat) in enumerate(flat_blocks.items())
            if store
        }
        for place in sorted({*self.flat_blocks, *flat_blocks}):
            if place in self.flat_blocks and place in flat_blocks and store is self.store:
                continue
            if self.store and place in self.flat_blocks:
                self.store.fetch(place, self.turns[place])()
            if store and place in flat_blocks:
                flat = flat_blocks[place]
                store.allocate(place, flat)
                store.write(place, flat, values(flat) if values else flat.block.get_parameter)
                flat.bind(turns[place])
            else:
                self.flat_blocks[place].release()
            if self.store and place in self.flat_blocks:
                self.store.drop(place)
        self.flat_blocks, self.turns, self.buffers, self.store = flat_blocks, turns, buffers, store
        on_device = sum(each.nbytes for each in (*(store.on_device() if store else ()), *buffers))
        self.elsewhere = sum(part.size for flat in flat_blocks.values() for part in flat.parts) - on_device
        self.rebind()
        self.install()

    def _make_buffers(self, flat_blocks: Mapping[int, FlatBlock], store: Store | None) -> list[torch.Tensor]:
        """Returns the present buffers if they are as long as the longest flat block, else new ones.

        They are made outside of inference mode: a tensor of inference mode cannot be written to outside of it."""
        longest = max((store.length(flat) for flat in flat_blocks.values()), default=0) if store else 0
        count = min(BUFFERS, len(flat_blocks))
        if [len(buffer) for buffer in self.buffers] == [longest] * count:
            return self.buffers
        with torch.autograd.grad_mode.inference_mode(False):
            return [torch.zeros(longest, dtype=torch.uint8, device=self.device) for _ in range(count)]

    def park_with(self, parking: Parking, extra: Sequence[torch.Tensor] = ()) -> None:
        """Has what is kept on the device park with the model's weights, and other tensors."""
        parking.extra = [*(self.store.on_device() if self.store else ()), *extra]
        parking.scratch = self.buffers

    def rebind(self) -> None:
        """Has the fetched parameters be views of the buffers again, where somebody has made others in their place."""
        for place, flat in self.flat_blocks.items():
            flat.bind(self.turns[place])

    def rewrite(self, place: int, name: str, value: torch.Tensor) -> None:
        """Gives a fetched parameter another value: what this rank is to write of it. No forward may be running."""
        if self.store:
            self.store.write(place, self.flat_blocks[place], lambda _: value, only=name)

    def install(self) -> None:
        """Puts the hooks on the fetched blocks, behind what is there."""
        self.hooks.remove()
        for index, flat in enumerate(self.flat_blocks.values()):
            self.hooks.before(flat.block, partial(self._enter, index))
            self.hooks.after(flat.block, partial(self._leave, index), prepend=True)  # before what may end the forward

    @contextmanager
    def forward(self, *ends: type[Exception]) -> Iterator[None]:
        """While entered, one forward of the model runs. ends: by which a forward may end early."""
        self.begin()
        try:
            yield
        except ends:
            self.finish()
            raise
        self.finish()

    def begin(self) -> None:
        """Before a forward."""
        self.await_fetches()
        self.asked = self.done = 0
        for _ in range(BUFFERS):
            self._ask()

    def finish(self) -> None:
        """After a forward: asks for what it has not run."""
        while self.done < len(self.flat_blocks):
            self._pass()

    def serve(self, agree: Callable[[], None] | None = None) -> None:
        """In place of a forward, where there is nothing to compute: gives to the other ranks what they ask for.

        agree: what the others wait for behind their first block, before they ask for more.
        """
        serves = self.store and self.store.is_collective
        if serves:
            self.begin()
        if agree:
            agree()
        if serves:
            self.finish()

    def await_fetches(self) -> None:
        """Waits for what is on its way."""
        while self.underway:
            self.underway.popleft()()

    def _enter(self, index: int, block: torch.nn.Module, _args: Any) -> None:
        while self.done < index:
            self._pass()  # it is skipped
        if self.done > index or not self.underway:
            raise RequestError(
                f"A node has the model run a {type(block).__name__} out of turn, and its weights are fetched in the "
                "order of the blocks.",
                "Use weights=whole in the plan, or leave that node out.",
            )
        self._arrive()

    def _leave(self, index: int, _block: torch.nn.Module, _args: Any, _output: Any) -> None:
        self.done = index + 1
        self._ask()

    def _arrive(self) -> None:
        with self.timeline.communication("weights"):
            self.underway.popleft()()

    def _pass(self) -> None:
        self._arrive()
        self.done += 1
        self._ask()

    def _ask(self) -> None:
        if self.store and self.asked < len(self.flat_blocks):
            place = list(self.flat_blocks)[self.asked]
            self.asked += 1
            self.underway.append(self.store.fetch(place, self.turns[place]))


def blocks_at(model: torch.nn.Module, lists: Sequence[str]) -> dict[str, torch.nn.Module]:
    """The blocks of these lists, by path, in their order; those of `weights/sizes.py`."""
    return {
        f"{path}.{name}": block
        for path in lists
        for name, block in model.get_submodule(path).named_children()
        if NUMBER.search(name)
    }


def find_shared_parameters(model: torch.nn.Module, shared: Sequence[str]) -> list[torch.Tensor]:
    """Parameters of blocks that are read outside of their block, or may be: of two names, or in `shared` submodules."""
    named = list(model.named_parameters(remove_duplicate=False))
    names = Counter(id(parameter) for _, parameter in named)
    return [
        parameter
        for name, parameter in named
        if names[id(parameter)] > 1 or any(name.startswith(f"{path}.") for path in shared)
    ]
