"""Puts loaders into prompts, with Parallelize Model behind those of stock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.host.graphs import Graph, Link

PARALLELIZE = "ParallelDiT_Parallelize"
Plan = Mapping[str, Any] | None  # degrees by axis, and other inputs of a manual plan; None is auto


def load(graph: Graph, model: str, plan: Plan = None, group: int = 1, dtype: str = "default") -> Link:
    """A model that the ranks run. model: the name of a file, or of a class-conditional DiT's folder."""
    if model.endswith(".safetensors"):
        loaded = graph.add("UNETLoader", unet_name=model, weight_dtype=dtype)
    elif model.endswith(".gguf"):
        loaded = graph.add("Test_LoadGGUF", unet_name=model)
    else:
        loaded = graph.add("ParallelDiT_LoadDiT", model_name=model)
    return parallelize(graph, loaded, plan, group)


def parallelize(graph: Graph, model: Link, plan: Plan = None, group: int = 1) -> Link:
    return graph.add(PARALLELIZE, model=model, group=group, **inputs_of(plan))


def inputs_of(plan: Plan) -> dict[str, Any]:
    return {"mode": "auto"} if plan is None else {"mode": "manual", **plan}


def bypass(prompt: dict) -> dict:
    """The prompt without Parallelize Model, which passes its MODEL on as a bypassed node does."""
    given = {key: node["inputs"]["model"] for key, node in prompt.items() if node["class_type"] == PARALLELIZE}
    return {
        key: {**node, "inputs": {name: passed_on(value, given) for name, value in node["inputs"].items()}}
        for key, node in prompt.items()
        if key not in given
    }


def passed_on(value: Any, given: Mapping[str, Link]) -> Any:
    return given.get(value[0], value) if isinstance(value, list) else value
