"""torch's collectives and messages in simulated streams: they still run, over gloo, and the simulator is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from tests.support.labelled.tensors import Labelled

from .simulator import HOST, Clock, Part, Simulator

ASKED_IN_VAIN = 2  # how often a work says that it is under way, however fast gloo is
GATHERS = tuple(name for name in ("all_gather_into_tensor", "all_gather_single") if hasattr(dist, name))


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
        self.own = {name: getattr(dist, name) for name in (
            "all_to_all_single", *GATHERS, "all_reduce", "broadcast", "isend", "irecv", "all_gather",
            "batch_isend_irecv", "barrier",
        )}  # fmt: skip
        self.unwaited: list[Pending] = []

    def enter(self, stack: contextlib.ExitStack) -> None:
        for name, value in (
            ("all_to_all_single", self.all_to_all), *((name, self.gather_with(name)) for name in GATHERS),
            ("all_reduce", self.all_reduce), ("broadcast", self.broadcast), ("all_gather", self.all_gather),
            ("isend", self.isend), ("irecv", self.irecv), ("send", self.send), ("recv", self.recv),
            ("batch_isend_irecv", self.batch), ("P2POp", Message), ("barrier", self.barrier),
        ):  # fmt: skip
            stack.enter_context(patch.object(dist, name, value))

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

    def finish(self, pending: Pending, is_async: bool) -> Pending | None:
        if is_async:
            return pending
        pending.wait()
        return None

    def all_to_all(
        self, output: torch.Tensor, given: torch.Tensor, of: Any = None, to: Any = None, group: Any = None,
        async_op: bool = False,
    ) -> Pending | None:  # fmt: skip
        run = self.own["all_to_all_single"]
        work = self.start(
            "all_to_all", [given], [output], group, lambda: run(output, given, of, to, group=group, async_op=True)
        )
        return self.finish(work, async_op)

    def gather_with(self, name: str) -> Callable[..., Pending | None]:
        def gather(
            output: torch.Tensor, given: torch.Tensor, group: Any = None, async_op: bool = False
        ) -> Pending | None:
            run = self.own[name]
            work = self.start(
                "all_gather", [given], [output], group, lambda: run(output, given, group=group, async_op=True)
            )
            return self.finish(work, async_op)

        return gather

    def all_gather(self, outputs: list, given: torch.Tensor, group: Any = None) -> None:
        run = self.own["all_gather"]
        self.start(
            "all_gather", [given], outputs, group, lambda: run(outputs, given, group=group, async_op=True)
        ).wait()

    def all_reduce(
        self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Pending | None:
        run = self.own["all_reduce"]
        work = self.start("all_reduce", [tensor], [tensor], group, lambda: run(tensor, op, group, async_op=True))
        return self.finish(work, async_op)

    def broadcast(self, tensor: torch.Tensor, source: int, group: Any = None, async_op: bool = False) -> Pending | None:
        is_source = dist.get_rank() == source
        reads, writes = ([tensor], []) if is_source else ([], [tensor])
        run = self.own["broadcast"]
        work = self.start("broadcast", reads, writes, group, lambda: run(tensor, source, group, async_op=True))
        return self.finish(work, async_op)

    def barrier(self, group: Any = None) -> None:
        run = self.own["barrier"]
        self.start("barrier", (), (), group, lambda: run(group, async_op=True)).wait()

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

    def batch(self, messages: list[Message]) -> list[Pending]:
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
