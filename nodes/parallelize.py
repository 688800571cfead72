"""The node `Parallelize Model`. It makes the ranks run a MODEL that any node has made."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ..parallel_backend.costs.auto import PlanOfRun
from ..parallel_backend.device import CPU
from ..parallel_backend.errors import ModelFileError
from ..parallel_backend.plan import MODEL, ParallelPlan
from ..worker.comfyui.source import HostSource
from .errors import Refused
from .incoming.model import (
    Patcher,
    check_class,
    check_same,
    describe_in_memory,
    find_file,
    take_changes,
    take_file_pages,
)
from .model.host_file import DETECTORS, HostFile, describe_host_file, list_rank_arguments
from .model.planned_module import PlannedModule
from .model.remote_module import RemoteModule
from .model.remote_patcher import RemoteModelPatcher, remote_patcher
from .model.sampling import explain_stock, show_on_node
from .parallel_plan import choose_plan, group_input, parse_plan, plan_inputs, resolve_plan
from .plan_words import join_remarks
from .weights_file import kept_files
from .workers.ahead import prepare_model
from .workers.group import check_installed, device_count, device_type, settings, worker_group


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
    remote = model.remote_module if isinstance(model, RemoteModelPatcher) else None
    before = remote and remote.planned.decided.plan
    try:
        new = load_incoming(model, asked, group)
        take_changes(model, new, partial(load_incoming, asked=asked, group=group))
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
        new = load_described(check_same(model, describe_host_file(*find_file(model))), name, asked, group)
        take_file_pages(model, new)
        return new
    except (ModelFileError, Refused) as error:
        if isinstance(model, RemoteModelPatcher) or type(model.model.model_config).__name__ in DETECTORS:
            raise
        logging.info("[ParallelDiT] The ranks map the weights of %s. %s", name, error.explanation.cause)
        try:
            file = describe_in_memory(model, Path(name).stem)
        except ModelFileError:  # ComfyUI makes no such model of its weights
            raise error from None
    new = load_described(file, name, asked, group)
    kept_files[new.model] = kept_files[model.model]  # it stays as long as one of both does
    return new


def load_described(file: HostFile, name: str, asked: ParallelPlan | None, group: int) -> RemoteModelPatcher:
    """Returns the MODEL of a file, run by the worker group. name: of the model, as the user knows it. asked:
    the plan; None means auto. Raises PlanError."""
    costs = file.costs
    if asked is None:
        decided, words = PlanOfRun(partial(choose_plan, costs=costs)), "auto, decided by the first call of a sampling"
    else:
        resolved = resolve_plan(asked, file.module, file.sizes)
        choose = lambda work: resolved._replace(plan=costs.choose_patches(work, resolved.plan))  # noqa: E731
        decided = PlanOfRun(choose, is_set=not resolved.plan.leaves_patches)
        words = str(resolved.plan)
    logging.info("[ParallelDiT] %s (ComfyUI's own %s): %s", name, file.source.model_class, words)
    if asked and (note := decided.choice.note):
        logging.warning("[ParallelDiT] %s", join_remarks(note))
    plan, workers = decided.plan, worker_group(group)
    arguments = list_rank_arguments(plan.world_size * plan.patch_count > 1, device_type() == CPU)
    source = replace(file.source, arguments=arguments)
    prepare_model(workers, plan.world_size, source.to_json(), source.files)
    planned = PlannedModule(workers, file.module, source, costs, decided, name)
    return remote_patcher(file.model, RemoteModule(source, planned))


def name_of(model: Patcher) -> str:
    """Returns the name of a MODEL's file, or of its class if it names none."""
    if isinstance(model, RemoteModelPatcher) and model.remote_module:
        return model.remote_module.planned.name
    init = getattr(model, "cached_patcher_init", None)
    path = init[1][0] if init and init[1] else ""
    path = path.file if isinstance(path, HostSource) else path
    return Path(path).name if isinstance(path, str) and path else type(model.model).__name__
