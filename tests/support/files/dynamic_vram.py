"""`python -m tests.support.files.dynamic_vram COMFYUI FILE...`: prints as JSON, by file, in what a stock MODEL differs
from the model in its file, after ComfyUI has loaded it and has run a layer, as it does on NVIDIA's cards.

ComfyUI's own code loads it, with the CPU in a card's place. What comfy-aimdo does is left out.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from safetensors import safe_open

from tests.support.host.mounted import packages

CARD = torch.device("cpu")


def main(comfyui: str, *files: str) -> None:
    sys.path.insert(0, comfyui)
    sys.modules.update(packages())
    import comfy.memory_management
    import comfy.model_patcher
    import comfy.sd
    import comfy.utils
    import comfy_aimdo.host_buffer

    dynamic = comfy.model_patcher.ModelPatcherDynamic
    incoming, host_file, differences = (
        importlib.import_module(f"pack.nodes.{name}")
        for name in ("incoming.model", "model.host_file", "incoming.differences")
    )
    told = {}
    with ExitStack() as stack:
        for owner, name, value in (
            (comfy.model_patcher, "CoreModelPatcher", dynamic),
            (dynamic, "__new__", lambda cls, *given, **options: object.__new__(cls)),
            (dynamic, "_vbar_get", lambda self, create=False: MagicMock()),
            (comfy.memory_management, "aimdo_enabled", True),
            (comfy_aimdo.host_buffer, "HostBuffer", MagicMock()),
            (comfy.model_management, "should_use_bf16", lambda *given, **options: True),
            (comfy.utils, "load_safetensors", load_plainly),
        ):
            stack.enter_context(patch.object(owner, name, value))
        for file in files:
            model: Any = comfy.sd.load_diffusion_model(file)
            model.load(CARD)
            run_layers(model.model.diffusion_model)
            found = host_file.describe_host_file(*incoming.find_file(model))
            replaced = {*model.object_patches_backup, *model.backup}
            told[Path(file).name] = list(differences.find_differences(model.model, found.model, replaced))
    print(json.dumps(told))


def load_plainly(file: str) -> tuple[dict[str, torch.Tensor], dict[str, str] | None]:
    with safe_open(file, "pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118


def run_layers(module: torch.nn.Module) -> None:
    """Leaves on each layer what its forward does: the weights as they are on the card (`comfy.ops`)."""
    for part in module.modules():
        if hasattr(part, "_v"):
            vars(part).update(_v_weight=torch.empty(1), _v_bias=torch.empty(1), _prefetch={})


if __name__ == "__main__":
    main(*sys.argv[1:])
