"""Lists the diffusers schedulers that a request may use, and builds them for a model's config. All step elementwise, so
that PipeFusion can run them patch by patch: a patch sees its own pixels only.

The schedulers are diffusers' own, unmodified. Importing this module imports neither torch nor diffusers, so the host
can list the names. `stepper.py` runs what `build_scheduler` makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..errors import PlanError, RequestError

MODELS_OWN = "model's own"
DIFFUSION, FLOW, COGVIDEOX = "diffusion", "flow matching", "CogVideoX"  # kinds of noise schedule
PREDICTIONS = ("epsilon", "v_prediction", "sample")
DIT_CONFIG = MappingProxyType({"_class_name": "DDIMScheduler", "clip_sample": False})  # linear betas, epsilon


@dataclass(frozen=True)
class SchedulerChoice:
    """A diffusers scheduler as the user picks it.

    class_name: the diffusers class; "" is the one that the model's config names.
    kind: the noise schedule that it is for, as `kind_of` names it; "" fits any.
    overrides: config entries that make the class what the name says. They win over the model's config.
    predictions: the kinds of prediction that the class can take from a diffusion model.
    """

    class_name: str
    kind: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    predictions: tuple[str, ...] = PREDICTIONS


FLOW_SIGMAS = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
SCHEDULERS: Mapping[str, SchedulerChoice] = MappingProxyType(
    {
        MODELS_OWN: SchedulerChoice("", ""),
        "DDIM": SchedulerChoice("DDIMScheduler", DIFFUSION),
        "DDPM": SchedulerChoice("DDPMScheduler", DIFFUSION),
        "DPM++ 2M": SchedulerChoice(
            "DPMSolverMultistepScheduler", DIFFUSION, {"algorithm_type": "dpmsolver++", "use_karras_sigmas": False}
        ),
        "DPM++ 2M Karras": SchedulerChoice(
            "DPMSolverMultistepScheduler", DIFFUSION, {"algorithm_type": "dpmsolver++", "use_karras_sigmas": True}
        ),
        "DPM++ 2M SDE": SchedulerChoice(
            "DPMSolverMultistepScheduler", DIFFUSION, {"algorithm_type": "sde-dpmsolver++", "use_karras_sigmas": False}
        ),
        "UniPC": SchedulerChoice("UniPCMultistepScheduler", DIFFUSION),
        "Euler": SchedulerChoice("EulerDiscreteScheduler", DIFFUSION),
        "Euler ancestral": SchedulerChoice(
            "EulerAncestralDiscreteScheduler", DIFFUSION, predictions=("epsilon", "v_prediction")
        ),
        "Heun": SchedulerChoice("HeunDiscreteScheduler", DIFFUSION),
        "LMS": SchedulerChoice("LMSDiscreteScheduler", DIFFUSION),
        "LCM": SchedulerChoice("LCMScheduler", DIFFUSION),
        "Euler flow": SchedulerChoice("FlowMatchEulerDiscreteScheduler", FLOW),
        "Heun flow": SchedulerChoice("FlowMatchHeunDiscreteScheduler", FLOW),
        "DPM++ 2M flow": SchedulerChoice(
            "DPMSolverMultistepScheduler", FLOW, {**FLOW_SIGMAS, "algorithm_type": "dpmsolver++"}
        ),
        "UniPC flow": SchedulerChoice("UniPCMultistepScheduler", FLOW, FLOW_SIGMAS),
        "CogVideoX DDIM": SchedulerChoice("CogVideoXDDIMScheduler", COGVIDEOX),
        "CogVideoX DPM": SchedulerChoice("CogVideoXDPMScheduler", COGVIDEOX),
    }
)
CLASSES = {choice.class_name for choice in SCHEDULERS.values()} - {""}
# Entries of a config that are not supported: a shift by the image's size, and a flow that is told the other way round.
UNSUPPORTED = ("use_dynamic_shifting", "invert_sigmas")


def kind_of(config: Mapping[str, Any]) -> str:
    """Returns the kind of noise schedule that a scheduler's config describes."""
    name = config.get("_class_name", "")
    if "FlowMatch" in name or config.get("prediction_type") == "flow_prediction":
        return FLOW
    return COGVIDEOX if name.startswith("CogVideoX") else DIFFUSION


def build_scheduler(name: str, config: Mapping[str, Any]) -> Any:
    """Builds the scheduler of that name for the model whose scheduler_config.json is `config`; if that is empty, for a
    DiT.

    config: passed to the class as diffusers' `from_config(other.config)` does, with three repairs. The shift of a flow
    schedule keeps its value if its name differs between the classes. Latents are not clipped unless the config says so.
    Learned variances are not requested, because the engine drops them from the prediction.
    Raises RequestError for an unknown name or class, and for a scheduler that does not fit the model.
    """
    if name not in SCHEDULERS:
        raise RequestError(f"There is no scheduler {name!r}; there are {', '.join(SCHEDULERS)}.")
    config, choice = dict(config or DIT_CONFIG), SCHEDULERS[name]
    kind, class_name = kind_of(config), choice.class_name or config.get("_class_name", DIT_CONFIG["_class_name"])
    if choice.kind and choice.kind != kind:
        fitting = [other for other, each in SCHEDULERS.items() if each.kind in ("", kind)]
        raise RequestError(
            f"The scheduler {name!r} is for {choice.kind} models, and this model's scheduler config is for {kind} "
            f"({config.get('_class_name', 'no class')}).",
            f"Use {', '.join(fitting)}.",
        )
    prediction = config.get("prediction_type", "epsilon")
    if choice.kind == DIFFUSION and prediction not in choice.predictions:
        raise RequestError(
            f"The scheduler {name!r} takes {', '.join(choice.predictions)} predictions, and this model's scheduler "
            f"config says {prediction!r}.",
            f"Use DDIM, or {MODELS_OWN!r}.",
        )
    unknown = [] if class_name in CLASSES else [class_name]
    if found := unknown or [option for option in UNSUPPORTED if config.get(option)]:
        raise RequestError(
            f"The model's scheduler config names {found[0]!r}, which the Parallel Sampler does not have.",
            f"Choose a scheduler by name in place of {MODELS_OWN!r}." if unknown else "Use a stock KSampler.",
        )
    if str(config.get("variance_type", "")).startswith("learned"):
        del config["variance_type"]
    return from_config(class_name, config, choice.overrides)


def from_config(class_name: str, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """Builds the diffusers class of that name from the entries of `config` that it takes. Raises RequestError if it
    can't."""
    import diffusers

    scheduler_class = getattr(diffusers, class_name)
    taken = inspect.signature(scheduler_class.__init__).parameters
    repairs = {"clip_sample": config.get("clip_sample", False)}
    shift = config.get("flow_shift") or config.get("shift")
    if kind_of(config) == FLOW and shift is not None:
        repairs["shift"] = repairs["flow_shift"] = shift
    entries = {**config, **{name: value for name, value in repairs.items() if name in taken}}
    try:
        return scheduler_class.from_config(entries, **overrides)
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        raise RequestError(
            f"diffusers' {class_name} cannot be made from this model's scheduler config: {error}",
            "Choose another scheduler.",
        ) from error


def check_patchwise(scheduler: Any) -> None:
    """Raises PlanError if a scheduler's step needs the whole image."""
    if scheduler.config.get("thresholding"):
        raise PlanError(
            f"{type(scheduler).__name__} cannot run patch by patch, as PipeFusion does: its dynamic thresholding takes "
            "a quantile over the whole image.",
            "Use Euler or Euler flow, or a plan with one patch.",
        )
