"""What a process asks of a labelled GPU: kernels, memory, copies, waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .tensors import COPIES, Labelled, mapped
from .watch import place

INTO = "aten::copy_"  # copies into memory that is there
MAKES_ROOM = "aten::empty"  # what the names of operations that only allocate begin with


class Tally:
    """Observes operations and waits, see `Watch.observer`, and counts them for the process that is entered.

    of: by process. kernels: operations that compute or copy on the device. allocations: new memory on the device.
    copies: to the host and back. to_gpu, from_gpu: their bytes. waits: how often the host waits for the device; the
    attribute has their places.
    """

    def __init__(self) -> None:
        self.process = ""
        self.forget()

    def forget(self) -> None:
        self.of: dict[str, Counter[str]] = {}
        self.waits: dict[str, Counter[str]] = {}

    @contextmanager
    def working(self, process: str) -> Iterator[None]:
        """While entered, this process works; none without a name."""
        outside, self.process = self.process, process
        try:
            yield
        finally:
            self.process = outside

    def count(self, what: str, number: int = 1) -> None:
        if self.process and number:
            self.of.setdefault(self.process, Counter())[what] += number

    def wait(self) -> None:
        self.count("waits")
        if self.process:
            self.waits.setdefault(self.process, Counter())[place()] += 1

    def operation(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        name = func._schema.name
        if func.is_view or name.startswith("c10d"):
            return
        given, made = (leaves((args, tuple(kwargs.values()))), leaves((result,)))
        known = {address(each) for each in given}
        if name != INTO:
            self.count("allocations", len({address(each) for each in made if isinstance(each, Labelled)} - known))
        if name.startswith(MAKES_ROOM):
            return
        if name in COPIES:
            to, source = (args[0], args[1]) if name == INTO else (made[0], args[0])
            if isinstance(to, Labelled) != isinstance(source, Labelled):
                self.count("copies")
                self.count("to_gpu" if isinstance(to, Labelled) else "from_gpu", to.nbytes)
                return
        self.count("kernels")

    def on_host(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None: ...


def leaves(values: tuple) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    mapped(values, lambda each: found.append(each) if isinstance(each, torch.Tensor) else None)
    return found


def address(tensor: torch.Tensor) -> int:
    held = tensor.held if isinstance(tensor, Labelled) else tensor
    return held.untyped_storage().data_ptr()
