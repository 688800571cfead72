"""Lists the diffusers schedulers that a request may use, builds them for a model's config, and checks if they can run
patch by patch.

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
DIFFUSION, FLOW, COGVIDEOX, EDM = "diffusion", "flow matching", "CogVideoX", "EDM"  # kinds of noise schedule
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


def kind_of(config: Mapping[str, Any]) -> str:
    """Returns the kind of noise schedule that a scheduler's config describes."""
    name = config.get("_class_name", "")
    if any(part in name for part in ("FlowMatch", "FlowMap", "LTXEuler", "MiniMax")):
        return FLOW
    if config.get("prediction_type") == "flow_prediction":
        return FLOW
    if name.startswith("CogVideoX"):
        return COGVIDEOX
    return EDM if name.startswith(("EDM", "CosineDPM")) else DIFFUSION


def build_scheduler(name: str, config: Mapping[str, Any], default: Mapping[str, Any] = DIT_CONFIG) -> Any:
    """Builds the scheduler of that name for the model whose scheduler_config.json is `config`.

    config: passed to the class as diffusers' `from_config(other.config)` does, with three repairs. The shift of a flow
    schedule keeps its value if its name differs between the classes. Latents are not clipped unless the config says so.
    Learned variances are not requested, because the engine drops them from the prediction.
    default: the family's config, for a folder that has none.
    Raises RequestError for an unknown name, and for a scheduler that does not fit the model.
    """
    if name not in SCHEDULERS:
        raise RequestError(f"There is no scheduler {name!r}; there are {', '.join(SCHEDULERS)}.")
    config, choice = dict(config or default), SCHEDULERS[name]
    kind, class_name = kind_of(config), choice.class_name or config.get("_class_name") or default["_class_name"]
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
    if PATCHWISE.get(class_name):
        raise RequestError(f"{class_name} cannot sample here: {PATCHWISE[class_name]}.", "Choose a scheduler by name.")
    if str(config.get("variance_type", "")).startswith("learned"):
        del config["variance_type"]
    return from_config(class_name, config, choice.overrides)


def from_config(class_name: str, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """Builds the diffusers class of that name from the entries of `config` that it takes. Raises RequestError if it
    can't."""
    import diffusers

    scheduler_class = getattr(diffusers, class_name, None)
    if not class_name.endswith("Scheduler") or scheduler_class is None:
        raise RequestError(
            f"The model's scheduler config names {class_name!r}, which diffusers {diffusers.__version__} does not "
            "have.",
            f"Choose a scheduler by name in place of {MODELS_OWN!r}.",
        )
    taken = inspect.signature(scheduler_class.__init__).parameters
    repairs = {"clip_sample": config.get("clip_sample", False)}
    shift = config.get("flow_shift") or config.get("shift")
    if kind_of(config) == FLOW and shift is not None:
        dynamic_elsewhere = config.get("use_dynamic_shifting") and "use_dynamic_shifting" not in taken
        repairs["shift"] = repairs["flow_shift"] = 1.0 if dynamic_elsewhere else shift
    entries = {**config, **{name: value for name, value in repairs.items() if name in taken}}
    try:
        return scheduler_class.from_config(entries, **overrides)
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        raise RequestError(
            f"diffusers' {class_name} cannot be made from this model's scheduler config: {error}",
            "Choose another scheduler.",
        ) from error


WHOLE_IMAGE = "its step needs the norm of the whole image"
OWN_LOOP = "only its own pipeline can run it: it wants more than a prediction, a timestep and latents at each step"
TOKENS = "it samples discrete tokens instead of latents"
INVERSE = "it adds noise instead of removing it"
# diffusers' scheduler classes, by the reason why they cannot run patch by patch; None if they can. A patch sees its own
# pixels only, so a step must be elementwise. tests/engine/sampling/test_scheduler_census.py keeps this true.
CENSUS: Mapping[str | None, str] = {
    TOKENS: """
        AmusedScheduler BlockRefinementScheduler DiscreteDDIMScheduler EntropyBoundScheduler
        VQDiffusionScheduler
    """,
    None: """
        CMStochasticIterativeScheduler CogVideoXDDIMScheduler CogVideoXDPMScheduler
        CosineDPMSolverMultistepScheduler DDIMParallelScheduler DDIMScheduler DDPMParallelScheduler
        DDPMScheduler DEISMultistepScheduler DPMSolverMultistepScheduler DPMSolverSDEScheduler
        DPMSolverSinglestepScheduler EDMDPMSolverMultistepScheduler EDMEulerScheduler
        EulerAncestralDiscreteScheduler EulerDiscreteScheduler FlowMapEulerDiscreteScheduler
        FlowMatchEulerDiscreteScheduler FlowMatchHeunDiscreteScheduler FlowMatchLCMScheduler
        HeunDiscreteScheduler IPNDMScheduler KDPM2AncestralDiscreteScheduler KDPM2DiscreteScheduler LCMScheduler
        LMSDiscreteScheduler LTXEulerAncestralRFScheduler MiniMaxH3Scheduler PNDMScheduler SASolverScheduler
        TCDScheduler UnCLIPScheduler UniPCMultistepScheduler
    """,
    OWN_LOOP: """
        ConsistencyDecoderScheduler DDPMWuerstchenScheduler HeliosDMDScheduler HeliosScheduler KarrasVeScheduler
        PiflowScheduler RFD4ProteinaScheduler RePaintScheduler SCMScheduler ScoreSdeVpScheduler
    """,
    INVERSE: "DDIMInverseScheduler DPMSolverMultistepInverseScheduler",
    WHOLE_IMAGE: "ScoreSdeVeScheduler",
}
PATCHWISE: Mapping[str, str | None] = MappingProxyType(
    {name: reason for reason, names in CENSUS.items() for name in names.split()}
)
# Config entries that, if set, make an elementwise class look at several pixels.
WHOLE_IMAGE_OPTIONS = MappingProxyType(
    {
        "thresholding": "its dynamic thresholding takes a quantile over the whole image",
        "scale_factors": "it resizes the image between steps",
    }
)


def why_not_patchwise(class_name: str, config: Mapping[str, Any]) -> str | None:
    """Returns why a scheduler of this class and config cannot run patch by patch; None if it can."""
    reason = PATCHWISE.get(class_name, "this version of the engine does not know it")
    reasons = [why for option, why in WHOLE_IMAGE_OPTIONS.items() if config.get(option)]
    return reason or next(iter(reasons), None)


def check_patchwise(scheduler: Any) -> None:
    """Raises PlanError if a diffusers scheduler cannot run patch by patch. Says why, and what to use."""
    class_name, config = type(scheduler).__name__, scheduler.config
    reason = why_not_patchwise(class_name, config)
    if reason is None:
        return
    kind = kind_of({**config, "_class_name": class_name})
    fitting = [name for name, choice in SCHEDULERS.items() if choice.kind == (kind if kind != EDM else DIFFUSION)]
    raise PlanError(
        f"{class_name} cannot run patch by patch, as PipeFusion does: {reason}.",
        f"Use {', '.join(fitting)}, or a plan with one patch.",
    )
