"""The node `Load Diffusion Model (Parallel)`: a model in, a stock MODEL out that runs on the worker group."""

from __future__ import annotations

import functools
import logging

import comfy.model_base
import comfy.model_management
import torch
from comfy_api.latest import io

from ..parallel_backend.costs.auto import PlanOfRun
from ..parallel_backend.errors import RequestError
from ..parallel_backend.models import adapter_for
from ..parallel_backend.plan import ParallelPlan
from ..parallel_backend.weights.loading import DTYPES
from .errors import Refused
from .model.families import family_for
from .model.host_file import WEIGHT_DTYPES, HostFile, describe_host_file
from .model.host_names import host_names
from .model.model_files import ModelDescription, describe_folder, list_models, why_not_listed
from .model.remote_model import Handover, RemoteDiT
from .model.remote_module import RemoteModule
from .model.remote_patcher import RemoteModelPatcher, remote_model, remote_patcher
from .model.schedule import Schedule
from .parallel_plan import PlanType, ResolvedPlan, auto_host_plan, resolve_host_plan, resolve_plan
from .plan_words import in_words
from .workers.ahead import prepare
from .workers.group import GROUPS, device_type, worker_group
from .workers.installed import check_installed

DEFAULT = "default"
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


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
                    tooltip="A safetensors or GGUF file in models/diffusion_models, a checkpoint in models/checkpoints "
                    "(its diffusion model alone is read), a diffusers folder in models/diffusers or "
                    "models/diffusion_models, or the demo model. Pickle files (ckpt, pt, bin) are not offered: loading "
                    "one can run any code.",
                ),
                *common_inputs(),
            ],
            outputs=[io.Model.Output(tooltip="For stock samplers, guiders and LoRA loaders, and Parallel Sampler.")],
        )

    @classmethod
    def validate_inputs(cls, model_name: str) -> bool | str:
        return True if model_name in list_models() else str(why_not_listed(model_name))

    @classmethod
    async def execute(
        cls, model_name: str, dtype: str, plan: ParallelPlan | None = None, group: int = 1
    ) -> io.NodeOutput:
        """Asynchronous, so that ComfyUI runs it before other nodes that could run, while which the ranks start."""
        check_installed()
        models = list_models()
        if model_name not in models:
            raise Refused(*why_not_listed(model_name))
        path = models[model_name]
        if path.is_file():
            return io.NodeOutput(host_model(model_name, describe_host_file(path, WEIGHT_DTYPES[dtype]), plan, group))
        return io.NodeOutput(folder_model(model_name, describe_folder(path), dtype, plan, group))


def common_inputs() -> list[io.Input]:
    """Of every loader, behind its file."""
    return [
        io.Combo.Input(
            "dtype",
            display_name="weight_dtype",
            options=list(WEIGHT_DTYPES),
            default=DEFAULT,
            advanced=True,
            tooltip="What the weights are cast to, as in the stock loader. default: what ComfyUI would choose for its "
            "own device. fp8 takes half of the memory of bf16 and is computed in bf16 or fp16; fast multiplies it as "
            "it is, where the device can. Quantised files stay as they are.",
        ),
        PlanType.Input("plan", optional=True, tooltip="From Parallel Plan. Not connected: auto."),
        io.Int.Input(
            "group",
            default=1,
            min=1,
            max=GROUPS,
            optional=True,
            tooltip="Which worker group holds this model. Models of one group take turns in memory, and are "
            "read anew; models of different groups stay loaded side by side, on the same devices.",
        ),
    ]


def folder_model(
    model_name: str, description: ModelDescription, dtype: str, plan: ParallelPlan | None, group: int
) -> RemoteModelPatcher:
    """The MODEL of a diffusers folder, which diffusers' class runs. Raises Refused, RequestError."""
    spec = adapter_for(description.model_class)
    family = family_for(description.model_class)
    if family is None:
        raise Refused(f"{description.model_class} runs in scripts only (docs/scripts.md); the editor has none yet.")
    plan, remarks = resolve_plan(plan, description.config, spec)
    model = family.build(description)
    torch_dtype = folder_dtype(model_name, dtype, description, model)
    dtype = next(name for name, value in DTYPES.items() if value == torch_dtype)
    source = description.source(dtype)
    logging.info("[ParallelDiT] %s (%s, %s): %s", model_name, description.model_class, dtype, plan)
    if remarks:
        logging.warning("[ParallelDiT] %s", in_words(remarks))
    handover = Handover(
        conditions=functools.partial(family.conditions, model),
        geometry=spec.geometry(source.config),
        sees_images="image_latents" in spec.conditions,
        visible=family.visible(source.config),
    )
    schedule = Schedule(description.scheduler, family.scheduler(description.config), family.linear_sigmas)
    names = host_names(description)
    workers = worker_group(group)
    prepare(workers, plan.world_size, source.to_json(), source.files)
    dit = RemoteDiT(workers, source, plan, handover, torch_dtype, schedule, names, remarks, model_name)
    return remote_model(model, dit)


def host_model(model_name: str, file: HostFile, plan: ParallelPlan | None, group: int) -> RemoteModelPatcher:
    """The MODEL of a file that ComfyUI's own class runs. Raises PlanError."""
    auto, costs = None, file.costs()
    if plan is None:
        auto = PlanOfRun(functools.partial(auto_host_plan, module=file.module, costs=costs))
        resolved = ResolvedPlan(auto.plan)
        logging.info("[ParallelDiT] %s (ComfyUI's own %s): auto, by what it is asked", model_name, file.model_class)
    else:
        resolved = resolve_host_plan(plan, file.module)
        logging.info("[ParallelDiT] %s (ComfyUI's own %s): %s", model_name, file.model_class, resolved.plan)
    if resolved.note:
        logging.warning("[ParallelDiT] %s", in_words(resolved.note))
    plan, source = resolved.plan, file.source(resolved.plan, device_type() == "cpu")
    workers = worker_group(group)
    prepare(workers, plan.world_size, source.to_json(), source.files)
    remote = RemoteModule(workers, source, plan, file.module, file.sizes, costs, resolved.note, auto, model_name)
    return remote_patcher(file.model, remote)


def folder_dtype(
    model_name: str, dtype: str, description: ModelDescription, model: comfy.model_base.BaseModel
) -> torch.dtype:
    """What a weight_dtype is for a diffusers folder: by default what ComfyUI's own loader would compute in on its
    device, of those that the model supports. Raises RequestError for one that diffusers' class has not."""
    if dtype in DTYPES:
        return DTYPES[dtype]
    if dtype != DEFAULT:
        raise RequestError(
            f"{model_name} is a diffusers folder, whose weights cannot be cast to {dtype}.",
            f"Choose the weight_dtype {DEFAULT}, or the model's file for ComfyUI.",
        )
    stored, supported = description.dtype, model.model_config.supported_inference_dtypes
    chosen = comfy.model_management.unet_dtype(supported_dtypes=supported, weight_dtype=stored)
    if chosen in FLOAT8:
        device = comfy.model_management.get_torch_device()
        chosen = comfy.model_management.unet_manual_cast(chosen, device, supported)
    return chosen if chosen is not None and chosen in DTYPES.values() else torch.bfloat16
