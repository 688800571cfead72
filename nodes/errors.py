"""What the nodes refuse by themselves, in words for the person in the editor."""

from __future__ import annotations

from ..parallel_backend.errors import Explained


class Refused(Explained, ValueError):
    """An input, or another node, with which this one cannot work."""


class NotInstalled(Explained, RuntimeError):
    """A package that the workers need, and that is not there."""
