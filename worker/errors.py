"""The errors of the worker group. Each has a cause, an advice and details, like the engine's errors."""

from __future__ import annotations

from .engine import errors

Explained = errors.Explained
Explanation = errors.Explanation
ModelFileError = errors.ModelFileError
NoRoomError = errors.NoRoomError
format_bytes = errors.format_bytes


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
