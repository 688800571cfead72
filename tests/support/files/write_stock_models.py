"""`files.write_stock_models COMFYUI FOLDER NAME...`:
writes tiny models by ComfyUI's own classes.

Each of ALL as NAME.safetensors, with seeded weights, under the names that its authors gave them.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.cases.files.host_cases import HOST_CASES
from tests.support.cases.files.unet_cases import UNETS
from tests.support.cases.host.base import of_comfyui
from tests.support.cases.stock_cases import CASES, SIZED_CASES
from tests.support.census.models import CENSUS_MODELS
from tests.support.host.mounted import import_comfyui

TABLES = (CASES, SIZED_CASES, HOST_CASES, UNETS, CENSUS_MODELS)
ALL = {name: case for table in TABLES for name, case in table.items()}
assert len(ALL) == sum(map(len, TABLES)), "two cases have one name"


def main(comfyui: str, folder: str, *names: str) -> None:
    import_comfyui(comfyui)
    for name in names:
        case = ALL[name]
        if importlib.util.find_spec(f"comfy.ldm.{case.module.rpartition('.')[0]}") is None:
            continue  # a newer ComfyUI's
        model = of_comfyui(f"comfy.ldm.{case.module}", device="meta", **case.config)
        generator = torch.Generator().manual_seed(11)
        weights = {}
        beside = {key: torch.empty(shape, device="meta") for key, shape in case.beside.items()}
        for key, tensor in {**model.state_dict(), **beside}.items():
            for own, published in case.renamed.items():
                key = key.replace(own, published)
            weights[key] = seeded(key, tensor, generator).to(case.dtype)
        metadata = {"config": json.dumps({"transformer": case.metadata})} if case.metadata else {}
        if case.detected_as:
            metadata["tiny"] = json.dumps({"class": case.detected_as, "config": dict(case.config)}, default=str)
        save_file(weights, Path(folder) / f"{name}.safetensors", metadata or None)


def seeded(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Weights that keep the size of what goes through them; those of norms are about one, as are learned tokens."""
    values = torch.randn(tensor.shape, generator=generator)
    if name.endswith("running_var"):
        return values.abs()
    if "." not in name:
        return values
    if tensor.ndim < 2:
        return 0.1 * values + (1.0 if name.endswith(("norm.weight", "scale")) or "norm" in name.split(".")[-2] else 0.0)
    return values / tensor[0].numel() ** 0.5
