"""ComfyUI's dynamic VRAM on the CPU, if it runs with --enable-dynamic-vram: by ComfyUI's own code, with RAM in a card's
place. Only what comfy-aimdo does is replaced. Without a card, ComfyUI never uses dynamic VRAM otherwise.
"""

from __future__ import annotations

import ctypes
import inspect
import mmap
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any

OPTION = "--enable-dynamic-vram"


class Pages:
    """comfy-aimdo's ModelVBAR. All that is allocated stays, until ComfyUI wants memory."""

    def __init__(self, *_: Any) -> None:
        self.allocated = self.freed = 0

    def prioritize(self, *_: Any) -> None: ...

    def alloc(self, size: int) -> list:
        import torch

        self.allocated += size
        return [self, torch.empty(size, dtype=torch.uint8), size]

    def loaded_size(self) -> int:
        return self.allocated

    def free_memory(self, size: int) -> int:
        self.freed += 1
        return min(self.allocated, int(size))


class File:
    """comfy-aimdo's ModelMMAP."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)

    def get(self) -> int:
        return ctypes.addressof(ctypes.c_uint8.from_buffer(self.map))

    def get_file_handle(self) -> int:
        return 0

    def bounce(self) -> bool:
        return False


class NoBuffer:
    """comfy-aimdo's HostBuffer, for pinned memory, which there is not."""

    size = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...


def replace_control(module: Any) -> None:
    module.init = module.analyze = lambda *_, **__: None
    module.init_devices = lambda *_: True
    for level in ("debug", "detail", "info", "critical", "error", "warning"):
        setattr(module, f"set_log_{level}", lambda: None)


def replace_pages(module: Any) -> None:
    module.ModelVBAR = Pages
    module.vbar_fault = lambda alloc: alloc[0].freed
    module.vbar_unpin = module.vbars_reset_watermark_limits = lambda *_: None
    module.vbar_signature_compare = lambda one, other: one is not None and one == other
    module.vbars_analyze = lambda *_: 0


def change(function: Any, *replaced: tuple[str, str]) -> Any:
    """Returns a function with another text."""
    text = textwrap.dedent(inspect.getsource(function))
    for before, after in replaced:
        assert before in text, "ComfyUI's code is another"
        text = text.replace(before, after)
    (code,) = (each for each in compile(text, function.__name__, "exec").co_consts if isinstance(each, types.CodeType))
    return types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)


def cast_as_on_a_card(module: Any) -> None:
    """Lets a layer's forward bring its weights, though these are on the same device."""
    is_there = 'hasattr(s, "_v")'
    module.cast_bias_weight = change(
        module.cast_bias_weight,
        (f"{is_there} and comfy.model_management.is_device_cpu(device)", "False"),
        (f"{is_there} and s.weight.device != device", is_there),
    )


def patch_as_on_a_card(module: Any) -> None:
    def find_pages(self: Any, create: bool = False) -> Pages | None:
        if create:
            self.model.dynamic_vbars.setdefault(self.load_device, Pages())
        return self.model.dynamic_vbars.get(self.load_device)

    # Else tiny models' layers would count as small ones, whose weights are loaded at once.
    small = ("module_mem > 16 * 1024", "module_mem > 0")
    module.ModelPatcherDynamic.load = change(module.ModelPatcherDynamic.load, small)
    module.ModelPatcherDynamic.__new__ = lambda cls, *_, **__: object.__new__(cls)
    module.ModelPatcherDynamic._vbar_get = find_pages


CHANGES: dict[str, Callable[[Any], None]] = {}
if OPTION in sys.orig_argv:
    CHANGES = {
        "comfy_aimdo.control": replace_control,
        "comfy_aimdo.model_vbar": replace_pages,
        "comfy_aimdo.torch": lambda module: setattr(module, "aimdo_to_tensor", lambda alloc, _device: alloc[1]),
        "comfy_aimdo.model_mmap": lambda module: setattr(module, "ModelMMAP", File),
        "comfy_aimdo.host_buffer": lambda module: setattr(module, "HostBuffer", NoBuffer),
        "comfy.ops": cast_as_on_a_card,
        "comfy.model_patcher": patch_as_on_a_card,
    }
