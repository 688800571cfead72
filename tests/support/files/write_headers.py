"""`python -m tests.support.files.write_headers COMFYUI FOLDER`:
writes the files of `published_cases`, whose weights are holes."""

from __future__ import annotations

import importlib
import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.support.cases.files.published_cases import PUBLISHED


def main(comfyui: str, folder: str) -> None:
    sys.path.insert(0, comfyui)
    sys.argv = [sys.argv[0], "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    operations = importlib.import_module("comfy.ops").disable_weight_init
    for name, case in PUBLISHED.items():
        module, _, class_name = case.module.rpartition(".")
        model_class = getattr(importlib.import_module(f"comfy.ldm.{module}"), class_name)
        model = model_class(**case.config, dtype=torch.bfloat16, device="meta", operations=operations)
        shapes = {}
        for key, tensor in model.state_dict().items():
            for own, published in case.renamed.items():
                key = key.replace(own, published)
            shapes[case.prefix + key] = tuple(tensor.shape)
        write_header(shapes, Path(folder) / f"{name}.safetensors")


def write_header(shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """A safetensors file of bf16 tensors that takes no room on the disk beside its header."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


if __name__ == "__main__":
    main(*sys.argv[1:])
