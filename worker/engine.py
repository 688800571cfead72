"""The engine's modules that ComfyUI's process and the ranks share. Each is imported when it is asked for.

In the ranks, whose working folder is the pack's, `worker` and the engine are top-level packages. ComfyUI loads both
inside of the pack, under a name made from its path.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..parallel_backend import compat as compat
    from ..parallel_backend import device as device
    from ..parallel_backend import errors as errors
    from ..parallel_backend.weights import shared_memory as shared_memory

MODULES = {"compat": "compat", "device": "device", "errors": "errors", "shared_memory": "weights.shared_memory"}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"The worker shares no module {name!r} of the engine.")
    engine = "parallel_backend" if __package__ == "worker" else "..parallel_backend"
    return importlib.import_module(f"{engine}.{MODULES[name]}", __package__)
