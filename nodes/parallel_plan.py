"""The plan that a node asks for: its inputs, and the plan that runs on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import comfy.cli_args
import torch
from comfy_api.latest import io

from ..parallel_backend.axes import AXES, STAGE_AXES
from ..parallel_backend.costs.auto import couples, list_model_plans, shareable
from ..parallel_backend.costs.forward import Work
from ..parallel_backend.device import CPU
from ..parallel_backend.errors import PlanError
from ..parallel_backend.models.checks import attention_sizes_of, check_module, list_spec_mismatches
from ..parallel_backend.plan import (
    ATTENTION,
    AUTO,
    COMPILE,
    COMPILED_STEPS,
    EXCHANGE_DTYPES,
    MODEL,
    OFF,
    WEIGHTS,
    ParallelPlan,
)
from ..parallel_backend.weights.sizes import WeightSizes
from ..worker.launch.torchrun import ranks_a_machine
from ..worker.settings import SettingsError
from .costs.plans import ModelCosts
from .costs.reasons import explain_choice, explain_work
from .plan_words import (
    Remark,
    ResolvedPlan,
    explain_one_rank,
    remark,
)
from .workers.group import GROUPS, device_count, device_type, most_ranks, settings, split_cards, why_no_group
from .workers.room import balance_stages

MANUAL = "manual"
# Inputs of prompts that are no part of a plan. The last ones are gone, or the mark of Compare plans.
OTHER_INPUTS = ("model", "mode", "group", "lossy", "compare", "sparse", "pieces", "paralleldit_comparison")
FORMER_DTYPES = ("int8", "fp8")  # of saved workflows, which exchange exactly now
MAX_DEGREE = 64
MAX_BLOCKS = 1000
ON_THE_CPU = (AUTO, "native")  # the attention kernels that need no GPU


def degree_input(axis: str) -> io.Input:
    """Returns the input for the degree of an axis."""
    return number_input(axis, AXES[axis], default=1, least=1, most=MAX_DEGREE)


def number_input(name: str, tooltip: str, *, default: int, least: int, most: int) -> io.Input:
    """Returns an input for a whole number of the plan."""
    return io.Int.Input(name, default=default, min=least, max=most, optional=True, tooltip=tooltip)


def choice_input(name: str, options: Sequence[str], default: str, tooltip: str) -> io.Input:
    """Returns an input for one of several values of the plan."""
    return io.Combo.Input(name, options=list(options), default=default, optional=True, tooltip=tooltip)


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


def plan_inputs() -> list[io.Input]:
    """Returns the inputs that set a plan."""
    return [
        io.Combo.Input(
            "mode",
            options=[AUTO, MANUAL],
            default=AUTO,
            tooltip="auto: the fastest plan, as predicted or measured here, on ComfyUI's GPU and all GPUs like "
            "it (without a GPU, on 2 CPU ranks). manual: the degrees below.",
        ),
        *(degree_input(axis) for axis in AXES if axis not in STAGE_AXES),
        choice_input(
            "attention",
            ATTENTION,
            AUTO,
            "The kernel that computes self-attention. auto: flash-attn where it is installed, else torch's own "
            "choice. sage, sage_fp8, sage_fp16: in 8 bits, lossy: the image differs a little.",
        ),
        *pipefusion_inputs(),
        *placement_inputs(),
        choice_input(
            "exchange_dtype",
            EXCHANGE_DTYPES,
            MODEL,
            "The numbers that ranks send each other under ulysses and ring. model: as they are; exact. int4: a "
            "quarter of bf16's bytes; the image changes a little. It sends what has changed since the step before, "
            "which takes memory; ulysses only. For slow links.",
        ),
        io.String.Input(
            "speeds",
            default="",
            optional=True,
            tooltip="The relative speed of each rank's device, by rank, such as 1, 0.5. A slower device gets "
            "proportionally less of the tokens, blocks and images. Empty: all are alike.",
        ),
        choice_input(
            "compile",
            COMPILE,
            OFF,
            "Whether the ranks run the model's blocks through torch.compile. The first steps at each size take "
            f"longer then. auto: on a GPU, for samplings of {COMPILED_STEPS} steps or more.",
        ),
    ]


def parse_plan(mode: str, values: Mapping[str, float | str]) -> ParallelPlan | None:
    """Returns the plan for a node's inputs; None if auto chooses it. Raises PlanError."""
    if mode == AUTO:
        return None
    own = {name: value for name, value in values.items() if name not in OTHER_INPUTS}
    if own.get("exchange_dtype") in FORMER_DTYPES:
        own["exchange_dtype"] = MODEL
    return ParallelPlan.from_json({**own, "speeds": parse_speeds(values.get("speeds", ""))})


def parse_speeds(words: float | str) -> tuple[float, ...]:
    """Parses speeds from a text such as "1, 0.5". An empty text has none. Raises PlanError."""
    try:
        return tuple(float(word) for word in re.split(r"[\s,;:]+", str(words).strip()) if word)
    except ValueError as error:
        raise PlanError(
            f"speeds={words!r:.200} is not a list of numbers.",
            'Give one number for each rank, such as "1, 0.5" if the second is half as fast. Leave it empty if all are '
            "alike.",
            "speeds",
        ) from error


def pipefusion_inputs() -> list[io.Input]:
    """Returns the inputs that set the pipeline's stages and their patches."""
    return [
        degree_input("pipefusion"),
        number_input(
            "patches",
            "How many patches PipeFusion cuts the image into. 0: as many as are predicted to be the fastest, or one "
            "per stage if that is unknown.",
            default=0,
            least=0,
            most=MAX_DEGREE,
        ),
        number_input(
            "sync_steps",
            "How many steps run exactly. After them, PipeFusion's patches see the others as they were a step before. "
            "More steps are slower and closer to the exact image.",
            default=1,
            least=1,
            most=1000,
        ),
    ]


def placement_inputs() -> list[io.Input]:
    """Returns the inputs that set where the blocks' weights are kept, and for how many blocks."""
    return [
        choice_input(
            "weights",
            WEIGHTS,
            AUTO,
            "Where the weights of idle blocks are kept. It never changes the image. whole: on each rank. shared: split "
            "over the ranks that compute with the same weights. host: in RAM. auto: whole if that fits. Otherwise as "
            "few blocks as possible leave the GPU, to where the link is faster.",
        ),
        number_input(
            "weight_blocks",
            "With weights shared or host: how many of a rank's blocks are shared or in RAM. 0: all. Fewer blocks take "
            "more memory and less time.",
            default=0,
            least=0,
            most=MAX_BLOCKS,
        ),
    ]


def resolve_plan(plan: ParallelPlan, module: torch.nn.Module, sizes: WeightSizes) -> ResolvedPlan:
    """The plan to run on this machine. module: the diffusion model, which may be on the meta device. sizes: of its
    weights.

    Raises PlanError if the model or the machine forbids it.
    """
    resolved = fit_to_machine(plan)
    check_module(replace(plan, attention=AUTO), module)  # without a GPU, the plan falls back to the auto kernel
    check_module(resolved.plan, module)
    return resolved._replace(plan=balance_stages(resolved.plan, sizes))


def explain_devices() -> list[Remark]:
    """Says how many ranks an automatic plan has on this machine, which GPUs it leaves out, and why."""
    given, found, (alike, others), count = comfy.cli_args.args, settings(), split_cards(), device_count()
    is_set = bool(found.ranks or found.gpus)
    # ComfyUI's arguments that hide GPUs from it, and so from the ranks.
    choices = (("--cuda-device", given.cuda_device), ("--oneapi-device-selector", given.oneapi_device_selector))
    chosen = " ".join(f"{flag}={value}" for flag, value in choices if value is not None)
    hidden = [remark("hidden_gpus", chosen=chosen)] if alike and chosen else []
    if others and not is_set:
        # Several machines have 0: the settings cannot choose among their GPUs.
        present = 0 if found.machines else len(alike) + len(others)
        hidden.append(remark("left_out", cards=", ".join(map(str, others)), own=str(alike[0]), present=present))
    if count <= 1:
        return [remark("auto_one"), *hidden]
    on_gpus = "auto_like" if others else "auto_gpus"
    key = "auto_set" if is_set else on_gpus if alike else "auto_cpu"
    return [remark(key, devices=count), *hidden]


def choose_plan(work: Work, costs: ModelCosts) -> ResolvedPlan:
    """Returns the automatic plan for a call to one of ComfyUI's own diffusion models.

    It is the first of the possible exact plans: by their predictions, or else in the order of `list_plans`. Its note
    says why.
    """
    (found, tried), devices, module = costs.order_plans(work), device_count(), costs.module
    plan = found[0].plan if found else list_model_plans(devices, module, work)[0]
    why = explain_devices()
    if devices > 1:
        tokens = shareable(module) if work.splits_tokens else None
        heads = attention_sizes_of(module, tokens).heads if tokens else 0
        why += explain_work(plan, found, work, devices, heads, couples(module) or not work.splits_rows)
        if changes := list_spec_mismatches(module):
            why.append(remark("class_changed", model=type(module).__name__, changes="; ".join(changes)))
        why += explain_choice(found, tried)
    return ResolvedPlan(plan, tuple(why), tried)


def fit_to_machine(plan: ParallelPlan) -> ResolvedPlan:
    """Applies ParallelPlan.fit_devices to this machine, or to all machines in the settings. Raises PlanError."""
    if why := why_no_group():
        return ResolvedPlan(ParallelPlan(), (remark("no_group", why=why.cause, advice=why.advice),))
    most, on_gpus, note = most_ranks(), device_type() != CPU, ()
    fitted = plan.fit_devices(most, cores=not on_gpus and not settings().machines)
    if fitted is not plan:
        note += explain_one_rank(plan, most, on_gpus)
    if not on_gpus and plan.attention not in ON_THE_CPU:
        fitted = replace(fitted, attention=AUTO)
        note += (remark("cpu_kernel", attention=plan.attention),)
    try:
        ranks_a_machine(fitted.world_size, settings())
    except SettingsError as error:
        axes = (axis for axis, degree in fitted.degrees().items() if degree > 1)
        raise PlanError(error.explanation.cause, error.explanation.advice, *axes) from error
    return ResolvedPlan(fitted, note)
