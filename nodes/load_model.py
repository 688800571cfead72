"""The node `Load Diffusion Model (Parallel)`. It returns a stock MODEL that runs on the worker group."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path

import comfy.model_patcher
import comfy.sd
from comfy_api.latest import io

from ..parallel_backend.costs.auto import PlanOfRun
from ..parallel_backend.errors import Explained
from ..worker.settings import REFUSE
from .errors import Refused
from .model.host_file import WEIGHT_DTYPES, HostFile, NoDenoiser, WeightDtype, describe_host_file
from .model.model_files import explain_not_listed, list_models
from .model.own_schedule import read_schedule
from .model.remote_module import RemoteModule
from .model.remote_patcher import RemoteModelPatcher, remote_patcher
from .model.sampling import show_on_node
from .parallel_plan import AskedPlan, PlanType, choose_plan, resolve_plan
from .plan_words import ResolvedPlan, join_remarks
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
                    tooltip="A safetensors or GGUF file in models/diffusion_models, a safetensors file in "
                    "models/checkpoints, a diffusers folder, or the demo model. Of a checkpoint, only the diffusion "
                    "model is read. Pickle files (ckpt, pt, bin) are not offered: loading one can run any code.",
                ),
                *common_inputs(),
            ],
            outputs=[io.Model.Output(tooltip="For stock samplers, guiders and LoRA loaders, and Parallel Sampler.")],
        )

    @classmethod
    def validate_inputs(cls, model_name: str) -> bool | str:
        return True if model_name in list_models() else str(explain_not_listed(model_name))

    @classmethod
    async def execute(cls, model_name: str, dtype: str, plan: AskedPlan | None = None, group: int = 1) -> io.NodeOutput:
        """This is asynchronous so that ComfyUI runs it before other ready nodes. The ranks start while those run."""
        listed = list_models()
        try:
            model, _file = load_listed(listed, model_name, dtype, plan, group)
        except NoDenoiser as error:
            explain_stock(error, group)
            model = load_detector(listed[model_name], WEIGHT_DTYPES[dtype])
        return io.NodeOutput(model)


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
        group_input(),
    ]


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


def load_listed(
    listed: Mapping[str, Path],
    model_name: str,
    dtype: str,
    asked: AskedPlan | None,
    group: int,
    checkpoint: bool = False,
) -> tuple[RemoteModelPatcher, HostFile]:
    """Returns the MODEL of one of the listed files or folders, run by ComfyUI's own class, and what it was made from.
    asked: None means auto. checkpoint: whether the checkpoint loader asks.

    Raises NotInstalled, Refused for a name that is not listed, NoDenoiser, ModelFileError and PlanError.
    """
    check_installed()
    if model_name not in listed:
        raise Refused(*explain_not_listed(model_name, checkpoint))
    file = describe_host_file(listed[model_name], WEIGHT_DTYPES[dtype])
    return load_described(file, model_name, asked, group), file


def load_described(file: HostFile, name: str, asked: AskedPlan | None, group: int) -> RemoteModelPatcher:
    """Returns the MODEL of a file, run by the worker group. name: of the model, as the user knows it. asked: None means
    auto. Raises PlanError."""
    auto, costs, asked = None, file.costs(), asked or AskedPlan()
    if asked.plan is None:
        auto = PlanOfRun(functools.partial(choose_plan, costs=costs, lossy=asked.lossy))
        resolved, words = ResolvedPlan(auto.plan), "auto, decided by the first call of a sampling"
    else:
        resolved = resolve_plan(asked.plan, file.module, file.sizes)
        words = str(resolved.plan)
    logging.info("[ParallelDiT] %s (ComfyUI's own %s): %s", name, file.model_class, words)
    if resolved.note:
        logging.warning("[ParallelDiT] %s", join_remarks(resolved.note))
    plan, source = resolved.plan, file.source(resolved.plan, device_type() == "cpu")
    workers = worker_group(group)
    prepare_model(workers, plan.world_size, source.to_json(), source.files)
    schedule = read_schedule(file.folder)
    note, compares = resolved.note, asked.compare
    remote = RemoteModule(workers, source, plan, costs, note, auto, name, schedule, compares)
    return remote_patcher(file.model, remote)


def load_detector(path: Path, wanted: WeightDtype) -> comfy.model_patcher.ModelPatcher:
    """Returns the MODEL that the stock Load Diffusion Model returns. The model is in ComfyUI's process."""
    fast = {"fp8_optimizations": True} if wanted.fast else {}
    return comfy.sd.load_diffusion_model(str(path), model_options={"dtype": wanted.dtype, **fast})


def explain_stock(error: Explained, group: int, begin: str = "") -> None:
    """Says on the node and in the log that a model runs as stock. Raises the error if the settings ask for one. begin:
    goes before the error's text."""
    if worker_group(group).settings.when_not_parallel == REFUSE:
        raise error
    text = f"{begin} {error.explanation.brief}".strip()
    logging.warning("[ParallelDiT] %s", text)
    show_on_node(text)
