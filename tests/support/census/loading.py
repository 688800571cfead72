"""Loads the models of the rows by ComfyUI's own loader, and makes them parallel by *Parallelize Model*."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from parallel_backend.plan import ParallelPlan
from tests.support.census.rows import Row
from tests.support.files.quantise import quantised

NODE = "5"
REPLACED = "This sampling runs under "  # begins what the node says if another plan runs than was asked for


@contextmanager
def as_node() -> Iterator[list[str]]:
    """Yields these texts, of what is shown on the node while it is entered. There is no server."""
    server: Any = importlib.import_module("server").PromptServer
    shown: list[str] = []

    def show(text: str, node: str) -> None:
        if node == NODE and text.startswith(REPLACED):
            shown.append(text)

    server.instance = SimpleNamespace(send_progress_text=show)
    try:
        with importlib.import_module("comfy_execution.utils").CurrentNodeContext("census", NODE):
            yield shown
    finally:
        del server.instance


def is_ours(model: Any) -> bool:
    return hasattr(model, "remote_module")


class Loading:
    """The loading of a `Census`. places_node: whether a model of ComfyUI's is made parallel before it is sampled."""

    base: Path
    nodes: Any  # ComfyUI's module
    group: Any
    taken: bool
    why: list[str]
    said: list[str]
    remote: Any  # of the last model that was made parallel
    places_node = False

    def run(self, name: str, /, **inputs: Any) -> tuple:
        """What a node returns."""
        node = self.nodes.NODE_CLASS_MAPPINGS[name]
        if getattr(node, "INPUT_IS_LIST", False):
            inputs = {key: [value] for key, value in inputs.items()}
        if not hasattr(node, "GET_SCHEMA"):
            return tuple(getattr(node(), node.FUNCTION)(**inputs))
        result = node.execute(**inputs)
        return tuple(getattr(result, "result", result) or ())

    def load(self, row: Row, ours: bool) -> Any:
        path = self.base / "models" / "diffusion_models" / f"{row.model}.safetensors"
        if row.form:
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
            weights, path = load_file(path), path.with_name(f"{row.model}-{row.form}.safetensors")
            save_file(quantised(weights, row.form), path, metadata)
        (model,) = self.run("UNETLoader", unet_name=path.name, weight_dtype=row.dtype)
        return self.parallelize(row, model) if ours and not row.last else model

    def choose_plan(self, work: Any, costs: Any) -> Any:
        """Chooses among the plans of two ranks without predictions."""
        plans = importlib.import_module("pack.parallel_backend.costs.auto")
        words = importlib.import_module("pack.nodes.plan_words")
        return words.ResolvedPlan(plans.list_model_plans(2, costs.module, work)[0])

    def parallelize(self, row: Row, model: Any) -> Any:
        """The model by *Parallelize Model* under the row's plan."""
        names = ("parallelize", "model.sampling")
        node, sampling = (importlib.import_module(f"pack.nodes.{name}") for name in names)
        asked, said = ParallelPlan(**row.plan) if row.plan else None, []
        with ExitStack() as stack:
            for place, name, value in (
                *((each, "worker_group", lambda _group: self.group) for each in (node, sampling)),
                (node, "prepare_model", lambda *_args: None),
                (node, "choose_plan", self.choose_plan),
                (sampling, "warn", said.append),
                (node, "show_on_node", said.append),
            ):
                stack.enter_context(patch.object(place, name, value))
            found = node.parallelize(model, asked, 1)
        if not is_ours(found):
            self.taken, self.why = True, said
            self.said += said
        else:
            self.remote = found.remote_module
            self.said += [text for text in said if "replaces" in text]
        return found
