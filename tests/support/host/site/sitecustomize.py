"""On the path of a test's ComfyUI and of its ranks, where Python imports it first.

A file can say what ComfyUI is to detect in it, for families that it knows by a width that is not tiny: a model's in its
metadata, a ControlNet's, of which ComfyUI reads no metadata, in a tensor of JSON. VAEs of one size are tiny.

ComfyUI's process does not look for garbage among what it has imported. ComfyUI collects garbage every ten seconds while
prompts run. That was 44 % of its computing while `test_stock_families.py` ran.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clocks
import dynamic_vram
import tiny_vaes


def detect_tiny_models(module: Any) -> None:
    detect = module.model_config_from_unet

    def detect_tiny(state_dict: Any, prefix: str, *args: Any, metadata: Any = None, **options: Any) -> Any:
        tensor = state_dict.get("tiny")
        written = (metadata or {}).get("tiny", "null") if tensor is None else bytes(tensor.tolist())
        tiny = json.loads(written)
        if tiny is None:
            return detect(state_dict, prefix, *args, metadata=metadata, **options)
        import comfy.supported_models
        import comfy.utils

        config = getattr(comfy.supported_models, tiny["class"])(
            {name: value_of(each) for name, each in tiny["config"].items()}
        )
        if quantised := comfy.utils.detect_layer_quantization(state_dict, prefix):
            config.quant_config = quantised
        return config

    module.model_config_from_unet = detect_tiny


def value_of(written: Any) -> Any:
    """A value of a config, of which dtypes are written as text."""
    if not str(written).startswith("torch."):
        return written
    import torch

    return getattr(torch, written.removeprefix("torch."))


def keep_imports(module: Any) -> None:
    """Garbage is collected from the moment at which ComfyUI has imported all nodes."""
    add_routes = module.PromptServer.add_routes

    def add_all_routes(server: Any) -> None:
        gc.freeze()
        gc.enable()
        add_routes(server)

    module.PromptServer.add_routes = add_all_routes


# By name, the modules that are changed.
CHANGES: dict[str, Callable[[Any], None]] = {
    "comfy.model_detection": detect_tiny_models,
    **clocks.CHANGES,
    **dynamic_vram.CHANGES,
    **tiny_vaes.CHANGES,
}
if any(Path(argument).name == "main.py" for argument in sys.orig_argv[1:2]):
    gc.disable()
    CHANGES["server"] = keep_imports


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be changed, where Python itself does."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name in CHANGES else None
        if spec:
            run: Any = spec.loader.exec_module

            def run_and_change(module: Any) -> None:
                run(module)
                CHANGES[name](module)

            spec.loader.exec_module = run_and_change
        return spec


sys.meta_path.insert(0, Finder())
