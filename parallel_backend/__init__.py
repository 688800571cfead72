"""The engine: runs unmodified models on a mesh of ranks.

Knows torch and diffusers, and of other model classes what `models` says; nothing of sockets. `worker` imports it in
the ranks, `nodes` only its plan and its specs, which import neither torch.distributed nor diffusers. A script under
torchrun finds what it needs under the names below, which are imported when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .groups.mesh import start_distributed
    from .library import load_transformer, parallelize, unparallelize
    from .plan import ParallelPlan

__all__ = ["ParallelPlan", "load_transformer", "parallelize", "start_distributed", "unparallelize"]

_MODULES = {
    "ParallelPlan": ".plan",
    "load_transformer": ".library",
    "parallelize": ".library",
    "start_distributed": ".groups.mesh",
    "unparallelize": ".library",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)
