"""What goes wrong between ComfyUI and the worker group; its words have the form of the engine's errors."""

from __future__ import annotations

import traceback

try:
    from ..parallel_backend.errors import Explained, Explanation, ModelFileError
except ImportError:  # outside of ComfyUI, where the pack's folder is no package: in the ranks and their launchers
    from parallel_backend.errors import Explained, Explanation, ModelFileError

__all__ = [
    "Explained",
    "Explanation",
    "ModelFileError",
    "OutOfMemory",
    "RequestRefused",
    "WorkerGroupError",
    "unforeseen",
]

MAX_TRACEBACK = 8000  # characters, the last of them


class WorkerGroupError(Explained, RuntimeError):
    """The worker group did not start, died, or is left down."""


class RequestRefused(Explained, ValueError):
    """The worker group cannot serve this request, and says why; it lives on."""


class OutOfMemory(RequestRefused):
    """A rank ran out of memory (OOM) in this request; the group lives on, without a model."""


def unforeseen(error: Exception, rank: int) -> Explanation:
    """An error in a rank for which nobody has written words."""
    trace = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:].rstrip()
    return Explanation(
        f"{type(error).__name__}: {error}", "If it comes again, report it with the details.", f"Rank {rank}:\n{trace}"
    )
