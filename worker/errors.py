"""What goes wrong between ComfyUI and the worker group."""

from __future__ import annotations


class WorkerGroupError(RuntimeError):
    """The worker group did not start, died, or is left down."""


class RequestRefused(ValueError):
    """The worker group cannot serve this request, and says why; it lives on."""


class OutOfMemory(RequestRefused):
    """A rank ran out of memory in this request; the group lives on, without a model."""
