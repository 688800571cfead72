"""What `torch.cuda` says of a labelled GPU to ComfyUI's model management and to comfy-kitchen, which ask it a lot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from .tensors import GPU, Stream
from .watch import Memory

CUDA = "12.8"  # with which ComfyUI leaves comfy-kitchen to its kernels in torch, as those for CUDA need a card


class Card:
    """total: its bytes. memory: what of them is in use."""

    def __init__(self, memory: Memory, total: int) -> None:
        self.memory, self.total = memory, total

    def free(self) -> int:
        return self.total - self.memory.in_use

    def leave(self, size: int) -> None:
        """Has it so many bytes for weights, beside what ComfyUI leaves to a forward."""
        import comfy.model_management

        self.total = self.memory.in_use + int(comfy.model_management.minimum_inference_memory()) + size


class Seeds(torch.Generator):
    """A generator of the CPU's, whatever the device: a build for the CPU has no others."""

    def __new__(cls, device: object = None) -> Seeds:
        return super().__new__(cls, "cpu")


class Queue(Stream):
    """A stream that ComfyUI brings weights to the GPU on."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Numbered(TorchFunctionMode):
    """While entered, `torch.device` of a number is a GPU, as where there is one."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.device and args and isinstance(args[0], int):
            return torch.device(GPU.type, args[0])
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def card(memory: Memory, total: int, capability: tuple[int, int]) -> Iterator[Card]:
    """While entered, beside `on_gpu`, there is a card with so many bytes, of which `memory` is in use.

    ComfyUI is to be imported in it, as it looks for cards once.
    """
    major, minor = capability
    said = SimpleNamespace(name="labelled", major=major, minor=minor, total_memory=total, multi_processor_count=1)
    made = Card(memory, total)

    def stats(*_: Any) -> dict[str, int]:
        kinds = ("active", "allocated", "reserved")
        return dict.fromkeys((f"{kind}_bytes.all.current" for kind in kinds), memory.in_use)

    with contextlib.ExitStack() as stack:
        stack.enter_context(Numbered())
        stack.enter_context(patch.object(torch.version, "cuda", CUDA))
        stack.enter_context(patch.object(torch, "Generator", Seeds))
        for name, value in (
            ("is_available", lambda: True), ("device_count", lambda: 1), ("current_device", lambda: 0),
            ("get_device_properties", lambda *_: said), ("get_device_capability", lambda *_: capability),
            ("mem_get_info", lambda *_: (made.free(), made.total)), ("memory_stats", stats),
            ("Stream", Queue), ("stream", lambda queue: queue),
            ("default_generators", (Seeds(),)), ("empty_cache", lambda: None), ("ipc_collect", lambda: None),
        ):  # fmt: skip
            stack.enter_context(patch.object(torch.cuda, name, value))
        if hasattr(torch.accelerator, "memory"):  # since torch 2.9
            stack.enter_context(patch.object(torch.accelerator.memory, "empty_host_cache", lambda: None))
        yield made
