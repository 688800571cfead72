"""What ComfyUI's nodes write of a model's weights: its own file, that of a merge, and LoRAs of a difference."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.support.cases.files.formats import FORMATS
from tests.support.census.rows import Row, as_stock, habit
from tests.support.census.weights.merges import OTHER, adapt, load_other, other, simple, subtract, write_other
from tests.support.files.quantise import quantised

SAVED, PLAIN_FP8 = "saved: ", "plain fp8"
Convert = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Stored:
    """convert: makes a file's weights of those in fp32. as_loaded: a name of the loader's weight_dtype. argument: of
    ComfyUI's command line, for the dtype that the stock loader keeps on a GPU. is_quantised: ComfyUI cannot merge
    it."""

    convert: Convert
    as_loaded: str = "default"
    argument: str = ""
    is_quantised: bool = False


def cast_to(dtype: torch.dtype) -> Convert:
    return lambda weights: {name: weight.to(dtype) for name, weight in weights.items()}


def as_they_are(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return weights


STORED = {
    "fp16": Stored(cast_to(torch.float16), argument="fp16_unet"),
    "bf16": Stored(cast_to(torch.bfloat16), argument="bf16_unet"),
    "bf16, loaded as fp32": Stored(cast_to(torch.bfloat16)),
    "fp16, loaded as bf16": Stored(cast_to(torch.float16), argument="bf16_unet"),
    "fp8": Stored(partial(quantised, name=PLAIN_FP8), argument="fp8_e4m3fn_unet"),
    "fp8, loaded as fp32": Stored(partial(quantised, name=PLAIN_FP8)),
    "fp32, loaded as fp8": Stored(as_they_are, as_loaded="fp8_e5m2"),
    **{
        f"quantised as {name}": Stored(partial(quantised, name=name), is_quantised=True)
        for name in FORMATS
        if name != PLAIN_FP8
    },
}


def write_converted(census: Any, row: Row, name: str, convert: Convert) -> str:
    """Returns the name of the file with a row's model, or another, in another dtype."""
    folder = census.base / "models" / "diffusion_models"
    with safe_open(folder / f"{name}.safetensors", "pt") as file:
        weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        save_file(convert(weights), folder / f"{name} converted.safetensors", file.metadata())
    return f"{name} converted"


def written(census: Any, name: str, **inputs: Any) -> torch.Tensor:
    """Returns all bytes of the file that a node writes: names, dtypes, numbers, and what it says of the model."""
    folder = Path(census.base / "output")
    before = set(folder.rglob("*.safetensors"))
    census.run(name, filename_prefix="census", **inputs)
    (path,) = set(folder.rglob("*.safetensors")) - before
    content = path.read_bytes()
    path.unlink()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def save(stored: Stored) -> Callable[[Any, Row, Any], list[torch.Tensor]]:
    """Writes a model, a changed one, and both kinds of LoRA of a change."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        write_other(census, row, other(row, OTHER))
        names = [write_converted(census, row, name, stored.convert) for name in (row.model, other(row, OTHER))]
        row = replace(row, dtype=stored.as_loaded)
        args = importlib.import_module("comfy.cli_args").args
        with patch.object(args, stored.argument, True) if stored.argument else nullcontext():
            first, second = (load_other(census, row, model, name) for name in names)
            if stored.is_quantised:
                changed = difference = adapt(census, row, first)
            else:
                changed, difference = (merge(census, row, first, second, None) for merge in (simple, subtract))
            lora = {"model_diff": difference, "rank": 4, "bias_diff": True}
            return [
                written(census, "ModelSave", model=first),
                written(census, "ModelSave", model=changed),
                written(census, "LoraSave", **lora, lora_type="standard"),
                written(census, "LoraSave", **lora, lora_type="full_diff"),
                written(census, "ModelSave", model=first),
            ]

    return does


# The gate has each dtype, each way in which the loader casts, and a quantised format with one scale and with many.
IN_GATE = ("fp16", "bf16, loaded as fp32", "fp8", "fp32, loaded as fp8", "quantised as fp8", "quantised as nvfp4")
SAVED_ROWS: dict[str, Row] = {
    f"{SAVED}{name}": replace(habit(as_stock(), save(stored)), samples=False, slow=name not in IN_GATE)
    for name, stored in STORED.items()
}
