"""`python -m tests.support.files.write_controls COMFYUI FOLDER NAME...`:
writes for each of these cases of `unet_cases` a tiny ControlNet by ComfyUI's own class, as "NAME control.safetensors",
and a T2I adapter for Stable Diffusion 1, as "sd15 t2i.safetensors". Their weights are seeded."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.cases.files.unet_cases import UNETS
from tests.support.files.write_stock_models import seeded


def write_controlnet(name: str, folder: Path) -> None:
    case, operations = UNETS[name], importlib.import_module("comfy.ops").disable_weight_init
    config = {**case.config, "hint_channels": 3}
    network = importlib.import_module("comfy.cldm.cldm").ControlNet(
        **config, dtype=torch.float32, device="meta", operations=operations
    )
    generator = torch.Generator().manual_seed(17)
    weights = {key: seeded(key, tensor, generator) for key, tensor in network.state_dict().items()}
    tiny = json.dumps({"class": case.detected_as, "config": config}, default=str)
    weights["tiny"] = torch.tensor(list(tiny.encode()), dtype=torch.uint8)
    save_file(weights, folder / f"{name} control.safetensors")


def write_t2i_adapter(file: Path, channels: tuple[int, ...] = (32, 64, 128, 128)) -> None:
    """Under the names of the adapters for Stable Diffusion 1."""
    shapes = {"conv_in": (channels[0], 3 * 8**2, 3, 3)}
    for place, (before, own) in enumerate(zip(channels[:1] + channels, channels, strict=False)):
        if before != own:
            shapes[f"body.{2 * place}.in_conv"] = (own, before, 1, 1)
        for block, layer in itertools.product((2 * place, 2 * place + 1), ("block1", "block2")):
            shapes[f"body.{block}.{layer}"] = (own, own, 3 if layer == "block1" else 1, 3 if layer == "block1" else 1)
    generator, weights = torch.Generator().manual_seed(5), {}
    for layer, shape in shapes.items():
        weights[f"{layer}.weight"] = torch.randn(shape, generator=generator) / math.prod(shape[1:]) ** 0.5
        weights[f"{layer}.bias"] = torch.zeros(shape[0])
    save_file(weights, file)


def main(comfyui: str, folder: str, *names: str) -> None:
    sys.path.insert(0, comfyui)
    sys.argv = [sys.argv[0], "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    Path(folder).mkdir(exist_ok=True)
    for name in names:
        write_controlnet(name, Path(folder))
    write_t2i_adapter(Path(folder) / "sd15 t2i.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
