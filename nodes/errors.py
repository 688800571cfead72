"""The errors that the nodes raise themselves, with texts for the person in the editor."""

from __future__ import annotations

from ..parallel_backend.errors import Explained


class Refused(Explained, ValueError):
    """An input or another node that this node cannot work with, or a package that is not installed."""
