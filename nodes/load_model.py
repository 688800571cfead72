"""Makes the MODEL of a file that the worker group runs, or says why a model runs as stock."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from comfy_api.latest import io

from ..parallel_backend.costs.auto import PlanOfRun
from ..parallel_backend.device import CPU
from ..parallel_backend.errors import Explained
from ..parallel_backend.plan import ParallelPlan
from ..worker.settings import REFUSE
from .model.host_file import HostFile, list_rank_arguments
from .model.planned_module import PlannedModule
from .model.remote_module import RemoteModule
from .model.remote_patcher import RemoteModelPatcher, remote_patcher
from .model.sampling import warn
from .parallel_plan import choose_plan, resolve_plan
from .plan_words import join_remarks
from .workers.ahead import prepare_model
from .workers.group import GROUPS, device_type, worker_group


def group_input() -> io.Input:
    """Returns the input that chooses the worker group."""
    return io.Int.Input(
        "group",
        default=1,
        min=1,
        max=GROUPS,
        optional=True,
        tooltip="The worker group that holds this model. Models of one group stay on the devices together if they fit. "
        "Otherwise one is released, and read again when it is sampled. Each group has processes of its own.",
    )


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
    planned = PlannedModule(workers, file.module, source.to_json(), costs, decided, name)
    return remote_patcher(file.model, RemoteModule(source, planned))


def explain_stock(error: Explained, group: int, begin: str = "") -> None:
    """Says on the node and in the log that a model runs as stock. Raises the error if the settings ask for one. begin:
    goes before the error's text."""
    if worker_group(group).settings.when_not_parallel == REFUSE:
        raise error
    warn(f"{begin} {error.explanation.brief}".strip())
