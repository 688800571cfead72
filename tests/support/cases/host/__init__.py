"""Tiny models of ComfyUI's own classes, and calls of them: the rows of the equality table, by name."""

from __future__ import annotations

from tests.support.cases.host import flux, wan
from tests.support.cases.host.base import HostCase

CASES: dict[str, HostCase] = {**flux.CASES, **wan.CASES}
