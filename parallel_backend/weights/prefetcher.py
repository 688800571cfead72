"""Fetches the weights of blocks just before they run. The device holds two whole blocks at a time.

The parameters of a fetched block are views of one of two buffers, and the blocks take turns in them. A buffer is filled
again as soon as its block has run. The copy runs while the next blocks compute.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from ..errors import RequestError
from ..groups.timeline import SILENT, Timeline
from ..hooks import Hooks
from .flat_block import FlatBlock, Values
from .parking import Parking
from .read_ahead import read_ahead
from .sizes import BUFFERS
from .stores import Arrive, Store


class BlockPrefetcher:
    """The fetched blocks of a rank, in the order in which they run. There are none at first.

    A forward fetches each of them once, in this order, on every rank. This also holds if a rank has nothing to compute
    (`serve`), if a node skips a block, or if the forward ends early. So ranks that share weights never wait for each
    other in vain. If a forward fails, its outstanding fetches finish before the next forward begins.
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
        """blocks: by path.
        shared: submodules of blocks that the model also reads outside of their block.
        dtypes: by name in the model, the compute dtype of parameters whose values have another dtype for now.
        timeline: records how long a forward waits for weights."""
        self.model = model
        self.paths = list(blocks)
        self.blocks = list(blocks.values())
        self.device = device
        self.shared = shared
        self.dtypes = dtypes or {}
        self.timeline = timeline
        self.hooks = Hooks()
        self.flat_blocks: dict[int, FlatBlock] = {}  # by number, in order
        self.buffers: list[torch.Tensor] = []
        self.turns: dict[int, torch.Tensor] = {}  # by number, the buffer that a block is fetched into
        self.store: Store | None = None
        self.elsewhere = 0  # parameter bytes that are not on the device
        self.asked = self.done = 0  # counts of blocks in the running forward
        self.underway: deque[Arrive] = deque()

    def flatten_blocks(self, numbers: Iterable[int]) -> dict[int, FlatBlock]:
        """Returns the flat blocks of these numbers, fetched or not."""
        keep = {id(parameter) for parameter in find_shared_parameters(self.model, self.shared)}
        return {
            number: self.flat_blocks.get(number)
            or FlatBlock(self.paths[number], self.blocks[number], keep, self.dtypes)
            for number in sorted(numbers)
        }

    @property
    def sizes(self) -> list[int]:
        """The flat size of every block, in bytes."""
        return [flat.size for flat in self.flatten_blocks(range(len(self.blocks))).values()]

    def names(self) -> Iterator[tuple[str, int, str]]:
        """Yields each fetched parameter: its name in the model, its block's number, its name in the block."""
        for number, flat in self.flat_blocks.items():
            for name in flat.names:
                yield f"{flat.path}.{name}", number, name

    def rearrange(
        self, numbers: Iterable[int], store: Store | None, values: Callable[[FlatBlock], Values] | None = None
    ) -> None:
        """Fetches the blocks of these numbers from a store from now on, and no others.

        All ranks that share a store call this together.
        values: gives the values of a block whose parameters have none yet.
        Raises torch's error if memory is too small. The model can't be used after that.
        """
        self.await_fetches()
        flat_blocks = self.flatten_blocks(numbers) if store else {}
        buffers = self._make_buffers(flat_blocks, store)
        turns = {
            number: buffers[turn % BUFFERS][: store.length(flat)]
            for turn, (number, flat) in enumerate(flat_blocks.items())
            if store
        }
        stay = self.flat_blocks.keys() & flat_blocks.keys() if store is self.store else set()
        taken: dict[int, Values] = {}  # where blocks find their values

        def find(number: int) -> Iterator[torch.Tensor]:
            if store and values and number in flat_blocks:
                flat = flat_blocks[number]
                taken[number] = values(flat)
                yield from (part for _, _, part in flat.elements(*store.own_part(flat), taken[number]))

        for number in read_ahead(sorted((self.flat_blocks.keys() | flat_blocks.keys()) - stay), find):
            if self.store and number in self.flat_blocks:
                self.store.fetch(number, self.turns[number])()
            if store and number in flat_blocks:
                flat = flat_blocks[number]
                store.allocate(number, flat)
                store.write(number, flat, taken.pop(number, flat.block.get_parameter))
                flat.bind(turns[number])
            else:
                self.flat_blocks[number].release()
            if self.store and number in self.flat_blocks:
                del self.store.blocks[number]
        if store and store.pinner:
            store.pinner.wait()
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
        """Parks the tensors that this keeps on the device, and other ones, together with the model's weights."""
        parking.extra = [*(self.store.on_device() if self.store else ()), *extra]
        parking.scratch = self.buffers

    def rebind(self) -> None:
        """Makes the fetched parameters views of the buffers again, after someone has replaced them."""
        for number, flat in self.flat_blocks.items():
            flat.bind(self.turns[number])

    def rewrite(self, number: int, name: str, value: torch.Tensor) -> None:
        """Writes this rank's part of a new value for a fetched parameter. No forward may be running."""
        if self.store:
            self.store.write(number, self.flat_blocks[number], lambda _: value, only=name)

    def install(self) -> None:
        """Installs the hooks on the fetched blocks, after the hooks that they already have."""
        self.hooks.close()
        for index, flat in enumerate(self.flat_blocks.values()):
            self.hooks.before(flat.block, partial(self._enter, index))
            self.hooks.after(flat.block, partial(self._leave, index), prepend=True)  # before what may end the forward

    @contextmanager
    def forward(self, *ends: type[Exception]) -> Iterator[None]:
        """Wraps one forward of the model. Starts the first fetches, and at the end fetches the blocks that have not
        run. ends: exceptions by which the forward may end early; they are caught."""
        self.await_fetches()
        self.asked = self.done = 0
        for _ in range(BUFFERS):
            self._ask()
        with suppress(*ends):
            yield
        while self.done < len(self.flat_blocks):
            self._pass()

    def serve(self) -> None:
        """Gives the other ranks their shards while this rank has nothing to compute. Call it in place of a forward."""
        if self.store and self.store.axis:
            with self.forward():
                pass

    def await_fetches(self) -> None:
        """Waits for the fetches under way."""
        while self.underway:
            self.underway.popleft()()

    def _enter(self, index: int, block: torch.nn.Module, _args: Any) -> None:
        while self.done < index:
            self._pass()  # this block was skipped
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
            number = list(self.flat_blocks)[self.asked]
            self.asked += 1
            self.underway.append(self.store.fetch(number, self.turns[number]))


def find_shared_parameters(model: torch.nn.Module, shared: Sequence[str]) -> list[torch.Tensor]:
    """Lists the block parameters that are read outside of their block, or may be. Those are parameters with two names,
    and those of the `shared` submodules."""
    named = list(model.named_parameters(remove_duplicate=False))
    names = Counter(id(parameter) for _, parameter in named)
    return [
        parameter
        for name, parameter in named
        if names[id(parameter)] > 1 or any(name.startswith(f"{path}.") for path in shared)
    ]
