"""The node `Load Diffusion Model (Parallel)`. It returns a stock MODEL that runs on the worker group."""

from __future__ import annotations

import functools
import logging

from comfy_api.latest import io

from ..parallel_backend.costs.auto import PlanOfRun
from ..parallel_backend.plan import ParallelPlan
from .errors import Refused
from .model.host_file import WEIGHT_DTYPES, HostFile, describe_host_file
from .model.model_files import explain_not_listed, list_models
from .model.own_schedule import read_schedule
from .model.remote_module import RemoteModule
from .model.remote_patcher import RemoteModelPatcher, remote_patcher
from .parallel_plan import PlanType, ResolvedPlan, choose_plan, resolve_plan
from .plan_words import join_remarks
from .workers.ahead import prepare_model
from .workers.group import GROUPS, device_type, worker_group
from .workers.installed import check_installed

DEFAULT = "default"


class LoadDiffusionModelParallel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ParallelDiT_LoadDiffusionModel",
            display_name="Load Diffusion Model (Parallel)",
            category="ParallelDiT",
            description="Loads a diffusion transformer into the worker group. The MODEL works with the stock nodes.",
            search_aliases=["multi gpu", "load diffusion", "load checkpoint", "unet loader", "gguf", "xdit"],
            inputs=[
                io.Combo.Input(
                    "model_name",
                    options=list(list_models()),
                    tooltip="A safetensors or GGUF file in models/diffusion_models, a checkpoint in "
                    "models/checkpoints (only its diffusion model is read), a diffusers folder in models/diffusers or "
                    "models/diffusion_models, or the demo model. Pickle files (ckpt, pt, bin) are not offered: "
                    "loading one can run any code.",
                ),
                *common_inputs(),
            ],
            outputs=[io.Model.Output(tooltip="For stock samplers, guiders and LoRA loaders, and Parallel Sampler.")],
        )

    @classmethod
    def validate_inputs(cls, model_name: str) -> bool | str:
        return True if model_name in list_models() else str(explain_not_listed(model_name))

    @classmethod
    async def execute(
        cls, model_name: str, dtype: str, plan: ParallelPlan | None = None, group: int = 1
    ) -> io.NodeOutput:
        """This is asynchronous so that ComfyUI runs it before other ready nodes. The ranks start while those run."""
        check_installed()
        models = list_models()
        if model_name not in models:
            raise Refused(*explain_not_listed(model_name))
        file = describe_host_file(models[model_name], WEIGHT_DTYPES[dtype])
        return io.NodeOutput(build_model(model_name, file, plan, group))


def common_inputs() -> list[io.Input]:
    """Returns the inputs that every loader has after its file."""
    return [
        io.Combo.Input(
            "dtype",
            display_name="weight_dtype",
            options=list(WEIGHT_DTYPES),
            default=DEFAULT,
            advanced=True,
            tooltip="The dtype that weights are cast to, as in the stock loader. default: ComfyUI's choice for its "
            "own device. fp8 takes half the memory of bf16 and is computed in bf16 or fp16. fast: multiplies fp8 "
            "directly, if the device can. Quantised files stay as they are.",
        ),
        PlanType.Input("plan", optional=True, tooltip="From Parallel Plan. Not connected: auto."),
        io.Int.Input(
            "group",
            default=1,
            min=1,
            max=GROUPS,
            optional=True,
            tooltip="The worker group that holds this model. Models of one group replace each other in memory and "
            "are read again. Models of different groups stay loaded side by side, on the same devices.",
        ),
    ]


def build_model(model_name: str, file: HostFile, plan: ParallelPlan | None, group: int) -> RemoteModelPatcher:
    """Returns the MODEL of a file or folder, run by ComfyUI's own class. Raises PlanError."""
    auto, costs = None, file.costs()
    if plan is None:
        auto = PlanOfRun(functools.partial(choose_plan, module=file.module, costs=costs))
        resolved = ResolvedPlan(auto.plan)
        logging.info("[ParallelDiT] %s (ComfyUI's own %s): auto, by what it is asked", model_name, file.model_class)
    else:
        resolved = resolve_plan(plan, file.module)
        logging.info("[ParallelDiT] %s (ComfyUI's own %s): %s", model_name, file.model_class, resolved.plan)
    if resolved.note:
        logging.warning("[ParallelDiT] %s", join_remarks(resolved.note))
    plan, source = resolved.plan, file.source(resolved.plan, device_type() == "cpu")
    workers = worker_group(group)
    prepare_model(workers, plan.world_size, source.to_json(), source.files)
    asked = (plan, file.module, file.sizes, costs, resolved.note, auto)
    remote = RemoteModule(workers, source, *asked, name=model_name, schedule=read_schedule(file.folder))
    return remote_patcher(file.model, remote)
