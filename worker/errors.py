"""The errors of the worker group. Each has a cause, an advice and details, like the engine's errors."""

from __future__ import annotations

import traceback

from .engine import errors

Explained = errors.Explained
Explanation = errors.Explanation
ModelFileError = errors.ModelFileError
NoRoomError = errors.NoRoomError
format_bytes = errors.format_bytes

MAX_TRACEBACK = 8000  # characters, the last of them


class WorkerGroupError(Explained, RuntimeError):
    """The worker group did not start, has died, or stays down after too many deaths."""


class NoWorkerGroup(WorkerGroupError):
    """No worker group can run here until somebody acts. Asking again does not help."""


class RequestRefused(Explained, ValueError):
    """The worker group cannot serve this request, and says why. The group goes on."""


class OutOfMemory(RequestRefused):
    """A rank ran out of memory (OOM) in this request. The group goes on, without a model."""


class NoRoom(RequestRefused):
    """Another machine than ComfyUI's has no room for its copy of weights that are in no file. ComfyUI can run the model
    itself."""


class ConnectionClosed(ConnectionError):
    """The other side has closed the connection, is silent, or sends something unknown."""


def unforeseen(error: Exception, rank: int) -> Explanation:
    """Explains an error that the code did not expect."""
    trace = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:].rstrip()
    return Explanation(
        f"{type(error).__name__}: {error}", "If it happens again, report it with the details.", f"Rank {rank}:\n{trace}"
    )
