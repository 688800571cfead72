"""torch's collectives and messages in simulated streams: they still run, over gloo, and the simulator is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from tests.support.labelled.tensors import Labelled, tensors_in

from .simulator import HOST, Clock, Part, Simulator

ASKED_IN_VAIN = 2  # how often a work says that it is under way, however fast gloo is
# Of torch's collectives, the kind, and the places of the arguments that are read and that are written.
COLLECTIVES = {
    "all_to_all_single": ("all_to_all", (1,), (0,)),
    **{f"all_gather{end}": ("all_gather", (1,), (0,)) for end in ("", "_into_tensor", "_single")},
    "all_reduce": ("all_reduce", (0,), (0,)),
    "broadcast": ("broadcast", (0,), (0,)),
    "barrier": ("barrier", (), ()),
}


class Pending:
    """A started work. Its tensors live until somebody has waited for it, as torch keeps them."""

    def __init__(self, work: Any, simulator: Simulator, clock: Clock, kept: tuple, is_on_host: bool) -> None:
        self.work, self.simulator, self.clock = work, simulator, clock
        self.kept, self.is_on_host = kept, is_on_host
        self.asked = 0

    def wait(self, *_: Any) -> bool:
        self.work.wait()
        self.simulator.wait(HOST if self.is_on_host else self.simulator.current, self.clock)
        self.kept = ()
        return True

    def is_completed(self) -> bool:
        self.asked += 1
        is_done = self.asked > ASKED_IN_VAIN and self.work.is_completed()
        if is_done:
            self.simulator.wait(HOST, self.clock)
        return is_done


class Exchanges:
    """Functions in place of torch's. parts: of tensors, in blocks. place: of the calling code. unwaited: works whose
    handle may be dropped, with their tensors."""

    def __init__(self, simulator: Simulator, parts: Callable[[Any], list[Part]], place: Callable[[], str]) -> None:
        self.simulator, self.parts, self.place = simulator, parts, place
        self.own = {name: getattr(dist, name) for name in ("isend", "irecv")}
        self.unwaited: list[Pending] = []

    def enter(self, stack: contextlib.ExitStack) -> None:
        for name in filter(partial(hasattr, dist), COLLECTIVES):  # releases of torch name all-gathers differently
            stack.enter_context(patch.object(dist, name, self.collective(name)))
        for name in ("isend", "irecv", "send", "recv", "batch_isend_irecv"):
            stack.enter_context(patch.object(dist, name, getattr(self, name)))
        stack.enter_context(patch.object(dist, "P2POp", Message))

    def start(self, kind: str, reads: Any, writes: Any, group: Any, run: Callable[[], Any], parts: Any = ()) -> Pending:
        """Launches a collective on its group's stream, after what the current stream has done. parts: of messages, on
        whose tensors torch records that stream."""
        simulator, group = self.simulator, group or dist.group.WORLD
        is_on_host = not any(isinstance(each, Labelled) for each in (*reads, *writes))
        stream, what = f"{'host ' * is_on_host}group {group.group_name}", f"{kind} at {self.place()}"
        simulator.launch(stream, simulator.record(HOST if is_on_host else simulator.current))
        ranks = dist.get_process_group_ranks(group)
        simulator.start(kind, group.group_name, ranks, stream, what, parts)
        if is_on_host:
            simulator.meet_on_host()
        simulator.touch(stream, self.parts(reads), self.parts(writes), what)
        if parts:
            for block, _, _ in self.parts((*reads, *writes)):
                block.recorded.add(stream)
        pending = Pending(run(), simulator, simulator.record(stream), (*reads, *writes), is_on_host)
        self.unwaited = [each for each in self.unwaited if each.kept]
        self.unwaited.append(pending)
        return pending

    def collective(self, name: str) -> Callable[..., Pending | None]:
        run, (kind, read, written) = getattr(dist, name), COLLECTIVES[name]

        def call(*args: Any, group: Any = None, async_op: bool = False) -> Pending | None:
            reads, writes = (tensors_in([args[place] for place in places]) for places in (read, written))
            if kind == "broadcast":
                reads, writes = (reads, []) if dist.get_rank() == args[1] else ([], writes)
            pending = self.start(kind, reads, writes, group, lambda: run(*args, group=group, async_op=True))
            if async_op:
                return pending
            pending.wait()
            return None

        return call

    def isend(self, tensor: torch.Tensor, to: int, group: Any = None) -> Pending:
        run = self.own["isend"]
        return self.start("send", [tensor], [], group, lambda: run(tensor, to, group), [("send", to)])

    def irecv(self, tensor: torch.Tensor, source: int, group: Any = None) -> Pending:
        run = self.own["irecv"]
        return self.start("recv", [], [tensor], group, lambda: run(tensor, source, group), [("recv", source)])

    def send(self, tensor: torch.Tensor, to: int, group: Any = None) -> None:
        self.isend(tensor, to, group).wait()

    def recv(self, tensor: torch.Tensor, source: int, group: Any = None) -> int:
        self.irecv(tensor, source, group).wait()
        return source

    def batch_isend_irecv(self, messages: list[Message]) -> list[Pending]:
        """All messages in one kernel."""
        sent = [each.tensor for each in messages if each.run == self.isend]
        received = [each.tensor for each in messages if each.run == self.irecv]
        parts = [("send" if each.run == self.isend else "recv", each.peer) for each in messages]
        run = [(self.own["isend" if each.run == self.isend else "irecv"], each) for each in messages]

        def start() -> Works:
            return Works([start(each.tensor, each.peer, each.group) for start, each in run])

        return [self.start("messages", sent, received, messages[0].group, start, parts)]


class Message:
    """In place of `P2POp`."""

    def __init__(self, run: Callable[..., Any], tensor: torch.Tensor, peer: int, group: Any = None) -> None:
        self.run, self.tensor, self.peer, self.group = run, tensor, peer, group


class Works:
    """Several of gloo's works as one."""

    def __init__(self, works: list[Any]) -> None:
        self.works = works

    def wait(self) -> None:
        for work in self.works:
            work.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)
