"""Every private name of torch and gguf that the worker uses, and why. Used only through these functions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch


def torchrun_starts_by(start: Callable[..., Any]) -> AbstractContextManager[Any]:
    """While entered, torchrun calls `start` for each of its processes, in place of its own `SubprocessHandler`.

    It has no public way to take processes that run already. Since torch 2.3.
    """
    from torch.distributed.elastic.multiprocessing import api

    return patch.object(api, "get_subprocess_handler", start)


def bounded(reader: type, most: int) -> Any:
    """Returns gguf's class of readers, bounded: it raises ValueError where the file ends, and after so many reads.

    gguf's own believes whatever number of fields, tensors or entries a file names. Since gguf 0.10.
    """

    class Bounded(reader):
        reads = 0

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            self.reads += 1
            if self.reads > most:
                raise ValueError("it names more fields and tensors than any model has")
            if offset + int(count) * dtype().itemsize > len(self.data):
                raise ValueError("it names more than it holds")
            return super()._get(offset, dtype, count, override_order)

    return Bounded
