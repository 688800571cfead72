"""`files.split_rows COMFYUI`:
splits quantised weights of each format between two rows and tells what comes of it: by format and numbers of
rows, null if the weight cannot be split there; else by input whether a layer with the parts gives the whole one's bits,
and whether it stays quantised and copies nothing."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
import torch.nn.functional as F

from parallel_backend.weights.tensors import list_plain_tensors
from tests.support.cases.files.formats import FORMATS
from tests.support.files.quantise import in_format

COLUMNS, TOKENS = 256, 24
ROWS = ((896, 384), (912, 384), (896, 400), (896, 392), (1000, 384))  # of a layer, and of its first part
NO_KERNEL = ("mxfp8", "nvfp4")  # a CPU multiplies none of their inputs


def weights(rows: int) -> dict[str, torch.Tensor]:
    """By format."""
    layout, plain = importlib.import_module("worker.comfyui.gguf_layout"), torch.randn(rows, COLUMNS)
    found = {name: in_format(plain, form) for name, form in FORMATS.items() if "format" in form}
    blocks = torch.randint(0, 100, (rows * COLUMNS // 32, 18), dtype=torch.uint8)
    blocks[:, :2] = torch.full((len(blocks), 1), 0.25, dtype=torch.float16).view(torch.uint8)
    return found | {"gguf": layout.wrap_blocks(blocks, "Q4_0", (rows, COLUMNS))}


def told(name: str, whole: Any, first: int) -> dict[str, bool] | None:
    parts = importlib.import_module("worker.comfyui.quantised_rows").split_rows(whole, first)
    if parts is None:
        return None
    bias = torch.randn(len(whole))
    own, others = (type(whole), {part.untyped_storage().data_ptr() for part in list_plain_tensors(whole)})
    held = [part for each in parts for part in list_plain_tensors(each)]
    found = {
        "stays quantised": all(type(each) is own for each in parts),
        "copies nothing": {part.untyped_storage().data_ptr() for part in held} <= others,
    }
    inputs = {"plain input": torch.randn(TOKENS, COLUMNS)}
    algorithm = importlib.import_module("comfy.quant_ops").QUANT_ALGOS.get(FORMATS.get(name, {}).get("format"), {})
    if algorithm.get("quantize_input", True) and name not in (*NO_KERNEL, "gguf"):
        inputs["quantised input"] = type(whole).from_float(inputs["plain input"], algorithm["comfy_tensor_layout"])
    for kind, given in inputs.items():
        made = [
            F.linear(given, part, own) for part, own in zip(parts, bias.split([len(p) for p in parts]), strict=True)
        ]
        found[kind] = torch.equal(torch.cat(made, -1), F.linear(given, whole, bias))
    return found


def main(comfyui: str) -> dict[str, Any]:
    if "comfy.options" not in sys.modules:
        importlib.import_module("tests.support.host.mounted").import_comfyui(comfyui)
    torch.manual_seed(0)
    with torch.inference_mode():
        return {
            f"{rows} {first}": {name: told(name, whole, first) for name, whole in weights(rows).items()}
            for rows, first in ROWS
        }
