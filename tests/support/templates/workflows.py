"""The workflows that ComfyUI ships (its templates package), as files."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LOADERS = ("UNETLoader", "CheckpointLoaderSimple", "ImageOnlyCheckpointLoader")
OFF = (2, 4)  # modes of a node that is muted or bypassed


PACKAGE = "comfyui-workflow-templates-json"


def release() -> str:
    """Of the package, such as "comfyui-workflow-templates-json 0.1.27"."""
    return f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"


# The release that the pages' table of workflows and the example workflows are made from.
RELEASE = f"{PACKAGE} 0.1.27"


def templates_folder() -> Path | None:
    """Where they are; None where the package is not installed."""
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    return Path(found.origin).parent / "templates" if found and found.origin else None


@dataclass(frozen=True)
class Workflow:
    """One of them. usage: how often it is used, by the package's index. models: the files that its loaders of models
    name. nodes: the types of those that a MODEL goes into, and of samplers."""

    name: str
    usage: int
    models: tuple[str, ...]
    nodes: frozenset[str]


@cache
def workflows() -> tuple[Workflow, ...]:
    """All in the index, each once. Raises FileNotFoundError where the package is not installed."""
    folder = templates_folder()
    if folder is None:
        raise FileNotFoundError("ComfyUI's templates package is not installed.")
    index = json.loads((folder / "index.json").read_text())
    listed = {each["name"]: each for group in index for each in group["templates"]}
    return tuple(read(folder / f"{name}.json", each["usage"]) for name, each in listed.items())


def read(path: Path, usage: int) -> Workflow:
    nodes = list(running(json.loads(path.read_text())))
    models = {str(node["widgets_values"][0]) for node in nodes if node["type"] in LOADERS}
    sampling = {
        node["type"]
        for node in nodes
        if node["type"].startswith("Sampler") or any(each.get("type") == "MODEL" for each in node.get("inputs", ()))
    }
    return Workflow(path.stem, usage, tuple(sorted(models)), frozenset(sampling))


def running(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes that run, those inside of subgraphs that run included, and not the subgraphs themselves."""
    subgraphs = {each["id"]: each for each in workflow.get("definitions", {}).get("subgraphs", ())}

    def of(graph: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for node in graph["nodes"]:
            if node.get("mode") in OFF:
                continue
            if node["type"] in subgraphs:
                yield from of(subgraphs[node["type"]])
            else:
                yield node

    return of(workflow)
