"""Files of networks that nodes run inside of the model, as habits of the census."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.support.census.rows import ROWS, Given, Row, habit

NODE = "WanUni3CControlnetApply"
FILE = "uni3c of these rows.safetensors"
PLAIN = ROWS[NODE]


def write(census: Any, scale: float) -> None:
    """Writes the network's file, with its weights times a scale. Whoever has mapped the one before keeps that."""
    census.a_uni3c(PLAIN, None)
    folder: Path = census.base / "models" / "model_patches"
    weights = {name: scale * weight for name, weight in load_file(folder / "uni3c.safetensors").items()}
    save_file(weights, folder / f"new {FILE}")
    os.replace(folder / f"new {FILE}", folder / FILE)


def load(census: Any) -> Any:
    return census.run("ModelPatchLoader", name=FILE)[0]


def sample(census: Any, row: Row, model: Any, network: Any) -> torch.Tensor:
    node = row.node or NODE
    inputs = census.inputs(census.nodes.NODE_CLASS_MAPPINGS[node], row, model)
    return census.sample(row, census.run(node, **{**inputs, "model_patch": network})[0])


def overwritten(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A network that ComfyUI has loaded from a file that is now another."""
    write(census, 1.0)
    network = load(census)
    write(census, 3.0)
    found = [sample(census, row, model, network)]
    assert not hasattr(model, "stand_in") or "was overwritten after it was loaded" in census.why[0]
    return found


def loaded_again(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A network, and another from a later file of the same name."""
    found = []
    for scale in (1.0, 3.0):
        write(census, scale)
        found.append(sample(census, row, model, load(census)))
    assert not found[0].equal(found[1])
    return found


def on_device(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """ComfyUI puts a network on its device only if its own model runs."""
    write(census, 1.0)
    network = load(census)
    found = [sample(census, row, model, network)]
    loaded = importlib.import_module("comfy.model_management").current_loaded_models
    is_loaded = any(each.model is not None and each.model.model is network.model for each in loaded)
    assert is_loaded == (not hasattr(model, "stand_in")), "ComfyUI's device has loaded the network"
    return found


def of_own_class(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A network of a class that a pack derives from ComfyUI's."""
    census.a_fun(row, model)
    folder: Path = census.base / "models" / "model_patches"
    own = folder / "of a pack's class.safetensors"
    with safe_open(folder / "ZImage_Control.safetensors", "pt") as opened:
        metadata = {**opened.metadata(), "class": ".networks.PackControl"}
    save_file(load_file(folder / "ZImage_Control.safetensors"), own, metadata)
    return [sample(census, row, model, census.run("NetworkLoader", file=str(own))[0])]


NETWORK_HABITS: dict[str, Row] = {
    "a network whose file is overwritten": habit(replace(PLAIN, as_stock=True, shared=""), overwritten),
    "a network of a file that is loaded again": habit(PLAIN, loaded_again),
    "a network that ComfyUI's device does not load": habit(PLAIN, on_device),
    "a network of a pack's own class": habit(
        replace(ROWS["ZImageFunControlnet"], node="ZImageFunControlnet", shared="cfg=2"), of_own_class
    ),
    # Each token is compared with the whole first frame, and with all other tokens.
    "WanInfiniteTalkToVideo with two speakers": replace(
        ROWS["WanInfiniteTalkToVideo"],
        inputs={**ROWS["WanInfiniteTalkToVideo"].inputs, "mode": Given("two_speakers")},
        node="WanInfiniteTalkToVideo",
        shared="one rank",
    ),
}
