"""The node `Parallelize Model`. It makes the ranks run a MODEL that any node has made."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import comfy.model_patcher
from comfy_api.latest import io

from ..parallel_backend.errors import ModelFileError
from ..parallel_backend.plan import MODEL, ParallelPlan
from ..worker.comfyui.source import HostSource
from .errors import Refused
from .incoming.model import check_class, describe_in_memory, describe_incoming, share_weights, take_changes
from .load_model import explain_stock, group_input, load_described
from .model.host_file import NoDenoiser
from .model.remote_patcher import RemoteModelPatcher
from .model.sampling import show_on_node
from .parallel_plan import parse_plan, plan_inputs
from .weights_file import kept_files
from .workers.group import check_installed, device_count, device_type, settings

Patcher = comfy.model_patcher.ModelPatcher


class ParallelizeModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        mode, *others = plan_inputs()
        more = [*others, group_input()]
        for each in more:
            each.advanced = True
        return io.Schema(
            node_id="ParallelDiT_Parallelize",
            display_name="Parallelize Model",
            category="ParallelDiT",
            description="Makes all GPUs share a model's work. It stands behind any loader, anywhere on the MODEL line. "
            "Bypassed, the workflow is stock.",
            search_aliases=["ParallelDiT", "multi gpu", "parallel", "ulysses", "pipefusion", "xdit"],
            inputs=[
                io.Model.Input(
                    "model", tooltip="From any loader, LoRA loader or other node that makes or changes a MODEL."
                ),
                mode,
                *more,
            ],
            outputs=[io.Model.Output(tooltip="For all that takes a MODEL, and Parallel Sampler.")],
        )

    @classmethod
    def validate_inputs(cls, exchange_dtype: str = MODEL) -> bool:
        """Makes ComfyUI accept any exchange_dtype: saved workflows may have a former one. The plan refuses others."""
        return True

    @classmethod
    def fingerprint_inputs(cls, **_inputs: Any) -> str:
        """Makes ComfyUI run the node again once the settings or the devices are others: the plan depends on them."""
        return repr((settings(), device_type(), device_count()))

    @classmethod
    async def execute(cls, model: Patcher, mode: str, group: int = 1, **values: Any) -> io.NodeOutput:
        """This is asynchronous so that ComfyUI runs it before other ready nodes. The ranks start while those run."""
        return io.NodeOutput(parallelize(model, parse_plan(mode, values), group))


def parallelize(model: Patcher, asked: ParallelPlan | None, group: int) -> Patcher:
    """Returns a MODEL whose work the ranks share under this plan. It is the given one if they cannot run it, and the
    node says why. asked: None means auto. Raises PlanError, and Refused if the settings ask for an error instead."""
    check_installed()
    stand_in = model.stand_in if isinstance(model, RemoteModelPatcher) else None
    before = stand_in and stand_in.planned.decided.plan
    try:
        new = load_incoming(model, asked, group)
        take_changes(model, new, functools.partial(load_incoming, asked=asked, group=group))
    except (ModelFileError, Refused) as error:
        said = f"{name_of(model)} runs as stock, on ComfyUI's own device alone."
        if before:
            said = f"The plan of the node before this one stays: {before}."
        explain_stock(error, group, said)
        return model
    if before:
        show_on_node(f"This node's plan replaces the plan of the node before it, {before}.")
    return new


def load_incoming(model: Patcher, asked: ParallelPlan | None, group: int) -> RemoteModelPatcher:
    """Returns the ranks' MODEL of the model behind a MODEL, without what nodes have put on it. The ranks read the file
    that it names; if they cannot, they map the weights that it has. Raises ModelFileError, Refused and PlanError."""
    check_class(model)
    name = name_of(model)
    try:
        new = load_described(describe_incoming(model), name, asked, group)
        share_weights(model, new)
        return new
    except NoDenoiser:
        raise
    except (ModelFileError, Refused) as error:
        if isinstance(model, RemoteModelPatcher):
            raise
        logging.info("[ParallelDiT] The ranks map the weights of %s. %s", name, error.explanation.cause)
        try:
            file = describe_in_memory(model, Path(name).stem)
        except ModelFileError:  # ComfyUI makes no such model of its weights
            raise error from None
    new = load_described(file, name, asked, group)
    kept_files[new.model] = kept_files[model.model]  # it stays as long as one of both does
    return new


def name_of(model: Patcher) -> str:
    """Returns the name of a MODEL's file, or of its class if it names none."""
    if isinstance(model, RemoteModelPatcher) and model.stand_in:
        return model.stand_in.planned.name
    init = getattr(model, "cached_patcher_init", None)
    path = init[1][0] if init and init[1] else ""
    path = path.file if isinstance(path, HostSource) else path
    return Path(path).name if isinstance(path, str) and path else type(model.model).__name__
