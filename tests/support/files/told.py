"""What the product's code says of files and models in a process with ComfyUI and no server: `files.told:FUNCTION
COMFYUI ARGUMENTS...`."""

from __future__ import annotations

import importlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from parallel_backend.models.checks import list_spec_mismatches
from tests.support.cases.host import CASES
from tests.support.group.footprint import mapped_at
from tests.support.host.mounted import import_comfyui, mount
from worker.comfyui.model import cast_weights, dtype_name, map_model
from worker.comfyui.source import HostSource


def why_refused(comfyui: str, *files: str) -> dict[str, str]:
    """By name, why a file is refused; nothing of others."""
    mount(comfyui)
    host_file = importlib.import_module("pack.nodes.model.host_file")
    found = {}
    for file in map(Path, files):
        try:
            host_file.describe_host_file(file)
        except host_file.ModelFileError as error:
            found[file.name] = str(error)
    return found


def rank_arguments(comfyui: str, *arguments: str) -> list[Any]:
    """The arguments that one rank gives ComfyUI's code, where ComfyUI itself has these: on a GPU, and on the CPU."""
    mount(comfyui, *arguments)
    importlib.reload(importlib.import_module("comfy.cli_args"))  # where ComfyUI was imported with other arguments
    logging.disable(logging.CRITICAL)
    host_file = importlib.import_module("pack.nodes.model.host_file")
    return [host_file.list_rank_arguments(False, on_cpu) for on_cpu in (False, True)]


def small_layers(comfyui: str, file: str) -> list[Any]:
    """By name, in which dtype ranks hold each parameter of a plain fp8 file, and whether it has the bits of the file:
    first rounded, then with small layers as stored."""
    rounding, stored = HostSource(comfyui, ("--cpu",), file, "Flux", "float8_e4m3fn", "float32"), load_file(file)
    told = []
    for source in (rounding, replace(rounding, keeps_small=True)):
        model, _, dtypes = map_model(source)
        cast_weights(model.diffusion_model, dtypes)
        held = dict(model.diffusion_model.named_parameters())
        same = {name: held[name].dtype == stored[name].dtype and held[name].equal(stored[name]) for name in stored}
        told.append({name: [dtype_name(weight.dtype), same[name]] for name, weight in held.items()})
    return told


def in_pages(comfyui: str, file: str) -> dict[str, bool]:
    """Of the weights that are said to be in a file's pages, whether they are."""
    model, names, _ = map_model(HostSource(comfyui, ("--cpu",), file, "", "float32", ""))
    held = dict(model.named_parameters())
    return {name: mapped_at(held[name].data_ptr(), [Path(file).name]) is not None for name in names}


def look_up_names(comfyui: str, base: str, names: str) -> dict[str, Any]:
    """What Load DiT makes of names that a workflow gives: by name, what the node's check says of it (true, or words),
    the path that it means, and what executing it raises."""
    mount(comfyui, "--base-directory", base)
    load_dit = importlib.import_module("pack.nodes.load_dit")
    loader = load_dit.LoadDiT

    def raised(call: object, *arguments: object) -> str:
        try:
            call(*arguments)
        except Exception as error:  # told apart by the test
            return f"{type(error).__name__}: {error}"
        return ""

    return {
        name: {
            "valid": loader.validate_inputs(name),
            "path": str(load_dit.list_models().get(name, "")),
            "load": raised(loader.execute, name),
        }
        for name in json.loads(names)
    }


def rows_of(comfyui: str) -> dict[str, list[str]]:
    """Which rows of the equality table a ComfyUI can make: by row, what it has changed of the class, in words.

    Rows of classes that it does not have, or makes of other arguments, are left out.
    """
    import_comfyui(comfyui)
    found = {}
    for name, case in CASES.items():
        try:
            found[name] = list_spec_mismatches(case.build())
        except (ImportError, TypeError):
            continue
    return found
