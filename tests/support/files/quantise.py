"""`files.quantise COMFYUI FILE FORMAT...`:
writes a model file again in formats of ComfyUI's, as FILE-FORMAT.safetensors beside it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.cases.files.formats import FORMATS
from tests.support.host.mounted import import_comfyui

NO_QUANTISATION = ("mod.", "modulation.")  # parts of names


def main(comfyui: str, file: str, *names: str) -> None:
    import_comfyui(comfyui)
    weights, path = load_file(file), Path(file)
    for name in names:
        save_file(quantised(weights, name), path.with_name(f"{path.stem}-{name}.safetensors"))


def quantised(weights: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The weights, the blocks' matrices in a format."""
    if name == "plain fp8":
        return {key: tensor.to(torch.float8_e4m3fn) if tensor.ndim == 2 else tensor for key, tensor in weights.items()}
    form = FORMATS[name]
    found: dict[str, torch.Tensor] = {}
    for key, tensor in weights.items():
        is_matrix = tensor.ndim == 2 and "blocks." in key and not any(part in key for part in NO_QUANTISATION)
        if not is_matrix or tensor.shape[1] % form.get("convrot_groupsize", 1):
            found[key] = tensor
            continue
        found |= {own: part.contiguous() for own, part in in_format(tensor, form).state_dict(key).items()}
        said = {name: value for name, value in form.items() if name != "made_with"}
        found[key.removesuffix("weight") + "comfy_quant"] = torch.tensor(
            list(json.dumps(said).encode()), dtype=torch.uint8
        )
    return found


def in_format(weight: torch.Tensor, form: Mapping[str, Any]) -> Any:
    """The weight as a `QuantizedTensor`. form: of FORMATS."""
    quant_ops = importlib.import_module("comfy.quant_ops")
    options = {name: value for name, value in form.items() if name not in ("format", "made_with")}
    layout = quant_ops.QUANT_ALGOS[form["format"]]["comfy_tensor_layout"]
    return quant_ops.QuantizedTensor.from_float(weight, layout, **options, **form.get("made_with", {}))
