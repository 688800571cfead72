"""Seam 3, the stage boundary: a pipeline stage is the model with the blocks of other stages taken out.

Stand-ins take their places and pass the token streams through. So the model's own forward runs as it is: embeddings on
every stage, the local blocks, and the head on the last stage only.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from ...groups.mesh import Mesh
from ...hooks import Hooks
from ...models.checks import modules_at
from ...models.spec import BlockList, Streams, names
from ..arguments import Parameters
from ..layout import TokenLayout


class StageMessage(NamedTuple):
    """What a stage sends after a forward: for which step and patches, and for which of the step's forwards."""

    step: int
    patches: list[int]
    forward: int = 0


ShapeOf = Callable[[StageMessage], Sequence[int] | None]  # the shape of a message; None if it is not known yet


class StageExit(Exception):
    """Leaves the model's forward on a stage that is not the last. Its tokens are being sent to the next stage."""


class StandIn(torch.nn.Module):
    """Replaces a block of another stage. Returns the token streams unchanged. keep: submodules of the block that the
    model reads outside of the block's own forward."""

    def __init__(self, block: torch.nn.Module, returned: tuple[str, ...], keep: dict[str, torch.nn.Module]) -> None:
        super().__init__()
        self.signature = inspect.signature(block.forward)
        self.takes = Parameters(self.signature)
        self.returned = returned
        for path, module in keep.items():
            *parents, name = path.split(".")
            holder: torch.nn.Module = self
            for parent in parents:
                holder.add_module(parent, torch.nn.Module())
                holder = holder.get_submodule(parent)
            holder.add_module(name, module)

    def forward(self, *args: object, **kwargs: object) -> torch.Tensor | tuple[torch.Tensor, ...]:
        given = self.takes.name(args, kwargs)
        streams = tuple(given[name] for name in self.returned)
        return streams[0] if len(streams) == 1 else streams


def keep_stage(
    model: torch.nn.Module, lists: Sequence[BlockList], own: range, hooks: Hooks, shared: Sequence[str] = ()
) -> list[torch.nn.Module]:
    """Takes the blocks of other stages out of the model until the hooks are removed, and returns the local ones.

    own: the indices of the local blocks among all blocks.
    shared: submodules of blocks that the model reads outside of them.
    """
    every = [(each, index) for each in lists for index in range(len(modules_at(model, each.path)))]
    blocks = [block for each in lists for block in modules_at(model, each.path)]
    for number, (each, index) in enumerate(every):
        if number in own:
            continue
        prefix = f"{each.path}.{index}."
        keep = {path.removeprefix(prefix): model.get_submodule(path) for path in shared if path.startswith(prefix)}
        siblings = cast("torch.nn.ModuleList", model.get_submodule(each.path))
        hooks.callback(siblings.__setitem__, index, blocks[number])
        siblings[index] = StandIn(blocks[number], each.returned, keep)
    return blocks[own.start : own.stop]


def flatten(arguments: Sequence[tuple[Any, Streams]]) -> list[tuple[torch.Tensor, str]]:
    """Returns the tensors of arguments with tokens, each with its streams."""
    found = []
    for value, streams in arguments:
        found += [(value, streams)] if isinstance(streams, str) else zip(value, streams, strict=True)
    return found


class StageLink:
    """This stage's connections: tokens to the next stage and from the previous one, latents from the last to the first.

    Messages are in flight while the stage computes. They come in an order known beforehand, and each receive is posted
    while the previous message is used. A receive is not posted if its message depends on work that this rank has not
    launched.

    receives_ahead: if not, a receive is posted only when its message is wanted. CUDA loads a kernel when it first runs,
    and to do so waits for all posted work. If stages receive ahead meanwhile, they wait for each other for ever.

    Two buffers take turns to receive: when a receive is posted, all is launched that uses the message before the last
    one, and the receive comes after it. To send, each patch has a buffer, and whole steps use the first patch's. Two
    would not do: with more patches than stages, the latents of the others are between the last stage and the first,
    which receives one at a time. The two stages would wait for each other.

    A stage sends its tokens just before the next stage's first block. So they include what the model adds after this
    stage's last block, such as a ControlNet's residual.

    slot: holds the running forward, and the buffers. in_flight: sends, by the first of their patches. They are kept
    until their wait has returned, because gloo never delivers a send whose handle was dropped.
    """

    def __init__(self, mesh: Mesh, layout: TokenLayout) -> None:
        axis = mesh["pipefusion"]
        self.layout, self.slot = layout, layout.slot
        self.is_first = axis.index == 0
        self.is_last = axis.index == axis.degree - 1
        self.next, self.previous = (axis.global_rank((axis.index + step) % axis.degree) for step in (1, -1))
        self.outgoing, self.incoming = mesh.link_out, mesh.link_in
        self.timeline = mesh.timeline
        self.in_flight: dict[int, dist.Work] = {}
        # By the step's forward, what returns the shapes of a message's tensors, given its patches.
        self.known: dict[int, Callable[[list[int]], list[torch.Size]]] = {}
        self.launched: dict[int, int] = {}  # by patch, the last step whose work on this stage was launched
        self.loaded: set[Hashable] = set()  # the kinds of patches whose kernels have run
        self.expect([], None, 0)
        self.turn = False  # of the two buffers
        self.posted: tuple[StageMessage, dist.Work | None, torch.Tensor] | None = None

    def expect(self, coming: list[StageMessage], proceeds: Callable[[int], bool] | None, last_forward: int) -> None:
        """Announces what the previous stage sends: tokens, or on the first stage latents from the last. None of it is
        posted yet. proceeds: whether a step runs; asked before anything of the step is awaited. last_forward: of each
        step."""
        self.coming, self.proceeds, self.last_forward = list(coming), proceeds, last_forward
        self.receives_ahead = True
        self.step = 0  # of the last message taken
        self.shape_of: ShapeOf = lambda _: None  # replaced by the run's own with the first message
        self.known.clear()
        self.launched.clear()

    def expect_nothing_after(self, step: int) -> None:
        """Withdraws the announced messages of later steps. None of them is awaited yet."""
        self.coming = [message for message in self.coming if message.step <= step]

    def take(self, message: StageMessage, shape_of: ShapeOf, like: torch.Tensor) -> torch.Tensor:
        """Returns the next message, which must be this one, until the next call. like: gives its dtype."""
        self.shape_of, self.like = shape_of, like.new_empty(0)
        if self.posted is None:
            self._post()
        if self.posted is None:
            raise RuntimeError(f"{message} is wanted before its size is known.")
        announced, work, tensor = self.posted
        if announced != message:
            raise RuntimeError(f"{message} is wanted where {announced} was announced.")
        self.posted, self.step = None, message.step
        if work is not None:
            with self.timeline.communication("stage receive"):
                work.wait()
        self.post_next()
        return tensor

    def post_next(self) -> None:
        """Posts the receive of the next message, if that is allowed."""
        following = self.coming[0] if self.coming else None
        if self.posted or not following or not self.receives_ahead or not self.is_due(following):
            return
        if following.step == self.step or not self.proceeds or self.proceeds(following.step):
            self._post()

    def is_due(self, message: StageMessage) -> bool:
        """Whether this stage has launched the work that a message depends on. Latents depend on the tokens of their
        step, tokens on the latents of the previous step."""
        step = message.step if self.is_first else message.step - 1
        return step < 0 or all(self.launched.get(patch, -1) >= step for patch in message.patches)

    def _post(self) -> None:
        shape = self.shape_of(self.coming[0])
        if shape is None:
            return
        self.turn, size = not self.turn, math.prod(shape)
        buffer = self.slot.take_buffer(("received", self.turn), size, self.like)
        work = dist.irecv(buffer[:size], self.previous, group=self.incoming) if size else None
        self.posted = (self.coming.pop(0), work, buffer[:size].view(shape))
        self.slot.buffers["received", self.turn] = buffer

    def send_before(self, block: StandIn, blocks: BlockList, cut: Callable[[Any, Streams], Any], hooks: Hooks) -> None:
        """Sends the tokens that the next stage's first block would get, as one message, and leaves the forward by
        StageExit. block: its stand-in. cut: makes streams local."""

        def leave(_block: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            values, forward = block.takes.name(args, kwargs), self.slot.forward
            local = [(cut(values[name], blocks.tokens[name]), blocks.tokens[name]) for name in block.returned]
            self._send([tensor for tensor, _ in flatten(local)], forward.running)
            if forward.index == self.last_forward:
                self.mark_launched(forward.step, forward.running)
            raise StageExit

        hooks.before(block, leave, with_kwargs=True)

    def receive(self, blocks: BlockList, values: dict[str, Any]) -> None:
        """Puts the tokens from the previous stage into the arguments of this stage's first block. They are local."""
        layout, forward, known = self.layout, self.slot.forward, self.known
        handed = flatten([(values[name], blocks.tokens[name]) for name in blocks.returned])
        templates = [(tensor.shape, names(streams)) for tensor, streams in handed]
        lengths, dim = layout.forward.lengths, blocks.dim

        # Both without self: a cycle would keep the mesh's groups.
        def shapes_of(running: list[int]) -> list[torch.Size]:
            counts = [sum(layout.local_length(lengths[name], running) for name in streams) for _, streams in templates]
            pairs = zip(templates, counts, strict=True)
            return [torch.Size((*shape[:dim], count, *shape[dim + 1 :])) for (shape, _), count in pairs]

        def shape_of(message: StageMessage) -> Sequence[int] | None:
            shapes_of = known.get(message.forward)
            return [sum(map(math.prod, shapes_of(message.patches)))] if shapes_of else None

        known[forward.index] = shapes_of
        message, shapes = StageMessage(forward.step, forward.running, forward.index), shapes_of(forward.running)
        parts = self.take(message, shape_of, like=handed[0][0]).split([math.prod(shape) for shape in shapes])
        arrived = iter([part.view(shape) for part, shape in zip(parts, shapes, strict=True)])
        for name in blocks.returned:
            streams = blocks.tokens[name]
            is_one = isinstance(streams, str)
            values[name] = next(arrived) if is_one else type(values[name])(next(arrived) for _ in streams)

    def send_latents(self, values: Sequence[torch.Tensor], step: int, patches: list[int]) -> None:
        """Sends updated latents from the last stage to the first, as one message."""
        self._send(values, patches)
        self.mark_launched(step, patches)

    def mark_launched(self, step: int, patches: list[int]) -> None:
        """Records that this stage has launched its work on these patches in a step."""
        self.launched.update(dict.fromkeys(patches, step))
        self.post_next()

    def finish(self) -> None:
        """Waits until everything sent has been delivered."""
        for first in list(self.in_flight):
            self._await_delivery(first)

    def _await_delivery(self, first: int) -> None:
        if work := self.in_flight.pop(first, None):
            with self.timeline.communication("stage sends, delivery"):
                work.wait()

    def _send(self, parts: Sequence[torch.Tensor], patches: list[int]) -> None:
        """Sends copies of tensors, unless they are empty."""
        first, size = patches[0], sum(part.numel() for part in parts)
        self._await_delivery(first)  # it came before what this stage sends now, except in a step of two forwards
        if not size:
            return
        buffer = self.slot.take_buffer(("sent", first), size, parts[0])
        torch.cat([part.detach().flatten() for part in parts], out=buffer[:size])
        with self.timeline.communication("stage send"):
            work = dist.isend(buffer[:size], self.next, group=self.outgoing)
        if work is not None:  # None only on a rank outside of the group
            self.in_flight[first] = work
        self.slot.buffers["sent", first] = buffer
