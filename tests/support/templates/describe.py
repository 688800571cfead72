"""`templates.describe COMFYUI NAME...`:
what the loader's code says of each model file that ComfyUI's workflows name, and of these, and its MODEL of the nodes
in the workflows, as JSON.

In place of the files stand names and shapes by published proportions (`model_files`); all else is the loader's and
ComfyUI's own. By name, either "refused", or "model_class", what it "predicts", the
"buffers" of its own that nodes can read, the "plan" that auto gives two devices, why its tokens are "unshared" and its
rows are "coupled", if they are, "as_stock": the nodes for which ComfyUI's own model runs, and why, and "whole_tokens":
those whose functions need all tokens. "counted alike": of a Flux or SD3, whether a forward costs as
much with the weights in the ranks as before.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from parallel_backend.models.spec import spec_of
from tests.support.host.mounted import mount
from tests.support.templates.model_files import MODEL_FILES, ModelFile, model_file, other_use
from tests.support.templates.model_nodes import DEVICES, PATCHES, executed, with_networks
from tests.support.templates.workflows import workflows

LATENTS = (1, 16, 64, 64)


def main(comfyui: str, *names: str) -> dict[str, Any]:
    mount(comfyui)
    logging.disable(logging.CRITICAL)
    host_nodes = importlib.import_module("nodes")
    asyncio.run(host_nodes.init_builtin_extra_nodes())
    used: dict[str, set[str]] = {name: set() for name in names}
    for workflow in workflows():
        for name in workflow.models:
            if not other_use(name):
                used.setdefault(name, set()).update(workflow.nodes)
    described: dict[str, Any] = {}
    for kind in MODEL_FILES:
        files = [name for name in used if model_file(name) is kind]
        types = {each for name in files for each in used[name]}
        if files:
            found = describe(host_nodes.NODE_CLASS_MAPPINGS, kind, types)
            described |= dict.fromkeys(files, found)
    return described


def pack(module: str) -> Any:
    return importlib.import_module(f"pack.{module}")


def describe(node_classes: Mapping[str, Any], kind: ModelFile, types: set[str]) -> Any:
    contents = contents_of(kind)
    with (
        patch("pack.worker.comfyui.model.read_safetensors", lambda *_, **__: contents),
        patch.object(pack("nodes.model.host_file"), "mark_files", lambda _: ""),
    ):
        try:
            file = pack("nodes.model.host_file").describe_host_file(Path("model.safetensors"))
        except pack("parallel_backend.errors").ModelFileError as error:
            return {"refused": str(error)}
    if type(file.model.model_config).__name__ != kind.detected_as:
        return {"refused": f"ComfyUI takes it for {type(file.model.model_config).__name__}, not {kind.detected_as}"}
    of_known_cost = SimpleNamespace(image_tokens=0)
    counted = pack("parallel_backend.costs.forward").Work(forward=of_known_cost)
    plan = pack("parallel_backend.costs.auto").list_model_plans(DEVICES, file.module, counted)[0]
    is_counted = kind.detected_as in ("Flux", "SD3")
    before = count_anew(file) if is_counted else None
    group = pack("worker.host.client").WorkerGroup("cpu", Path())  # of which nothing is asked, so that none starts
    source = replace(file.source, arguments=pack("nodes.model.host_file").list_rank_arguments(True, True))
    decided = pack("parallel_backend.costs.auto").PlanOfRun(lambda _work: SimpleNamespace(plan=plan, note=()), True)
    planned = pack("nodes.model.planned_module").PlannedModule(
        group, file.module, source, file.costs, decided, source.model_class
    )
    remote = pack("nodes.model.remote_module").RemoteModule(source, planned)
    patcher = pack("nodes.model.remote_patcher").remote_patcher(file.model, remote)
    is_alike = count_anew(file) == before if is_counted else None
    spec = spec_of(type(file.module))
    as_stock, whole_tokens = {}, []
    for each in sorted(types):
        if reasons := reasons_of(node_classes, each, patcher):
            as_stock[each] = reasons
        elif not all(facts.splits_tokens for facts in remote.inside.facts):
            whole_tokens.append(each)
    return {
        "model_class": file.source.model_class,
        "predicts": file.model.model_type.name,
        "buffers": [name for name, one in file.module.named_buffers(recurse=False) if not one.is_meta],
        "plan": plan.to_json(),
        "unshared": spec.unshared if spec and spec.unshared else "",
        "coupled": spec.coupled if spec and spec.couples(file.module) else "",
        "counted alike": is_alike,
        "as_stock": as_stock,
        "whole_tokens": whole_tokens,
    }


def count_anew(file: Any) -> Any:
    """Counts a forward, whatever was counted of such a model before."""
    file.costs.forwards.clear()
    return file.costs.count_latents(LATENTS)


def reasons_of(node_classes: Mapping[str, Any], node: str, patcher: Any) -> list[str]:
    """Why the ranks cannot run a MODEL of ours behind a node, so that ComfyUI's own model does; empty if they can."""
    patched = patcher if node in PATCHES else executed(node_classes[node], patcher)
    options = with_networks(PATCHES.get(node), node_classes["ModelPatchLoader"]) or patched.model_options.get(
        "transformer_options", {}
    )
    return [*patched.remote_module.describe(options)[1], *patched.reasons()]


def contents_of(kind: ModelFile) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """What reading such a file gives: weights of no memory, and metadata."""
    supported = importlib.import_module("comfy.supported_models")
    config_class = getattr(supported, kind.detected_as)
    config = config_class({**config_class.unet_config, **kind.sizes})
    beside = {name: torch.zeros(shape) for name, shape in kind.beside.items()}
    build = pack("worker.comfyui.model").build
    built = build(config, {}, beside, torch.bfloat16, None, torch.device("meta"))
    shapes = {name: one.shape for name, one in built.diffusion_model.state_dict().items()}
    shapes |= dict.fromkeys(kind.marks, torch.Size([0]))
    plain, stored = (torch.zeros((), dtype=dtype) for dtype in (torch.bfloat16, kind.stored))
    zeros = {name: stored if len(shape) > 1 else plain for name, shape in shapes.items()}
    weights = {kind.prefix + name: zeros[name].expand(shape) for name, shape in shapes.items()}
    if kind.size:
        weights |= mixed(weights, kind.size)
    return {**weights, **beside}, {"config": json.dumps({"transformer": kind.says})} if kind.says else {}


def mixed(weights: Mapping[str, torch.Tensor], size: float) -> dict[str, torch.Tensor]:
    """What is otherwise in a file of this size, some of whose matrices stayed in bf16: those outside of blocks first,
    then the smallest, which gain least. The others are quantised in ComfyUI's own format."""
    quantised = [name for name, one in weights.items() if one.dtype == torch.float8_e4m3fn]
    left = size - sum(one.nbytes for one in weights.values())
    mark = torch.tensor(list(json.dumps({"format": "float8_e4m3fn"}).encode()), dtype=torch.uint8)
    found: dict[str, torch.Tensor] = {}
    for name in sorted(quantised, key=lambda name: (any(map(str.isdigit, name.split("."))), weights[name].numel())):
        layer, one = name.removesuffix("weight"), weights[name]
        if one.nbytes <= left:
            found[name] = torch.zeros((), dtype=torch.bfloat16).expand(one.shape)
            left -= one.nbytes
        else:
            found |= {f"{layer}comfy_quant": mark, f"{layer}weight_scale": torch.zeros(())}
    return found
