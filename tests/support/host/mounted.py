"""The pack's modules as ComfyUI has them, in a process without a server: for programs and tests that ask the nodes."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from demo.host import REPOSITORY
from worker.launch.imports import pause_garbage_collector


def packages() -> dict[str, ModuleType]:
    """By name, what is to stand in `sys.modules`: packages whose modules can be imported, and whose own code, which
    registers the nodes with a server, does not run."""
    found = {}
    for name, folder in {"pack": REPOSITORY, "pack.nodes": REPOSITORY / "nodes"}.items():
        found[name] = ModuleType(name)
        found[name].__path__ = [str(folder)]
    return found


def mount(comfyui: str, *arguments: str) -> None:
    """Imports ComfyUI, as if started with these arguments, and mounts the pack."""
    import_comfyui(comfyui, *arguments)
    sys.modules.update(packages())


def import_comfyui(comfyui: str, *arguments: str) -> None:
    """Puts ComfyUI's folder on the path, and imports its models' and files' code as if started with these arguments."""
    sys.path.insert(0, comfyui)  # whose `nodes` is another than this repository's
    sys.argv = [sys.argv[0], "--cpu", *arguments]
    with pause_garbage_collector():
        importlib.import_module("comfy.options").enable_args_parsing()
        importlib.import_module("comfy.model_management")  # first, because other modules import it in a circle
        importlib.import_module("comfy.sd")
