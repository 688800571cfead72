"""Files of networks that nodes run inside of the model, as habits of the census."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.support.cases.host.base import fill_weights
from tests.support.census.rows import ROWS, Given, Row, equal, habit

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
    return [sample(census, row, model, network)]


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
    assert is_loaded == (not hasattr(model, "remote_module")), "ComfyUI's device has loaded the network"
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


def filled(census: Any, row: Row, model: Any, is_written: bool = False) -> list[torch.Tensor]:
    """A network that a pack builds and fills itself. is_written: a weight of it is written over after that. The ranks
    map its weights."""
    functions: Any = sys.modules[census.nodes.NODE_CLASS_MAPPINGS["NetworkLoader"].__module__]
    network, file = fill_weights(functions.Beside(64, 128)), census.base / "beside.safetensors"
    save_file(network.state_dict(), file)
    network = functions.fill_network(functions.Beside(64, 128), str(file))
    if is_written:
        network.up.weight.data = network.up.weight.data.neg()
    with sent_bytes(census) as sent:
        found = [census.sample(row, functions.run_beside(model, network))]
    assert not any(size >= 1 << 14 for size in sent), sent
    return found


def again(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A network in four samplings. The ranks keep it for the second one. It is written to before the third, and the
    last one does not use it."""
    functions: Any = sys.modules[census.nodes.NODE_CLASS_MAPPINGS["NetworkLoader"].__module__]
    network = fill_weights(functions.Beside(64, 128))
    patched, found, kept = functions.run_beside(model, network), [], []
    for change in (None, None, torch.Tensor.neg_, None):
        if change:
            with torch.no_grad():
                change(network.up.weight)
        found.append(census.sample(row, patched if len(found) < 3 else model))
        if hasattr(model, "remote_module"):
            kept.append(len(census.remote.inside.encoder.kept))
    assert found[0].equal(found[1]) and not found[1].equal(found[2])
    assert kept in ([], [0, 1, 0, 0]), kept
    return found


@contextmanager
def sent_bytes(census: Any) -> Iterator[list[int]]:
    """The bytes of the tensors that are sent with what nodes put inside."""
    found, call = [], census.group.call

    def noted(given: Any, *args: Any, **kwargs: Any) -> Any:
        for _, named in given:
            found.extend(bytes_in(named["transformer_options"].get("paralleldit_graph")))
        return call(given, *args, **kwargs)

    with patch.object(census.group, "call", noted):
        yield found


def bytes_in(value: Any) -> Iterator[int]:
    if isinstance(value, torch.Tensor):
        yield value.nbytes
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from bytes_in(each)


OF_A_PACK = replace(equal(), shared="ulysses=2")
NETWORK_HABITS: dict[str, Row] = {
    "a network that a pack fills from a file": habit(OF_A_PACK, filled),
    "a network that a pack fills, and then writes into": habit(OF_A_PACK, partial(filled, is_written=True)),
    "a network that several samplings use": habit(OF_A_PACK, again),
    "a network whose file is overwritten": habit(PLAIN, overwritten),
    "a network of a file that is loaded again": habit(PLAIN, loaded_again),
    "a network that ComfyUI's device does not load": habit(PLAIN, on_device),
    "a network of a pack's own class": habit(
        ROWS["ZImageFunControlnet"], of_own_class, node="ZImageFunControlnet", shared="ulysses=2"
    ),
    # Each token is compared with the whole first frame, and with all other tokens.
    "WanInfiniteTalkToVideo with two speakers": replace(
        ROWS["WanInfiniteTalkToVideo"],
        inputs={**ROWS["WanInfiniteTalkToVideo"].inputs, "mode": Given("two_speakers")},
        node="WanInfiniteTalkToVideo",
        shared="one rank",
    ),
}
