"""`files.small_layers COMFYUI FILE`: tells, by name, in which dtype ranks hold each
parameter of a plain fp8 file, and whether it has the bits of the file: first rounded, then with small layers as stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from safetensors.torch import load_file

from worker.comfyui.model import cast_weights, dtype_name, map_model
from worker.comfyui.source import HostSource


def main(comfyui: str, file: str) -> list[Any]:
    rounding, stored = HostSource(comfyui, ("--cpu",), file, "Flux", "float8_e4m3fn", "float32"), load_file(file)
    told = []
    for source in (rounding, replace(rounding, keeps_small=True)):
        model, _, dtypes = map_model(source)
        cast_weights(model.diffusion_model, dtypes)
        held = dict(model.diffusion_model.named_parameters())
        same = {name: held[name].dtype == stored[name].dtype and held[name].equal(stored[name]) for name in stored}
        told.append({name: [dtype_name(weight.dtype), same[name]] for name, weight in held.items()})
    return told
