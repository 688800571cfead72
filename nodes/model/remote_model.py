"""What stands where ComfyUI has its diffusion model: its forwards and sampler calls go to the worker group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from comfy.ldm.common_dit import pad_to_patch_size
from comfy.patcher_extension import WrappersMP

from ...parallel_backend.models import adapter_for
from ...parallel_backend.plan import ParallelPlan
from ...parallel_backend.weights.loading import ModelSource
from ...parallel_backend.weights.sizes import sizes_of_source
from ...worker.comfyui.patched_options import SCHEDULE
from ...worker.host.client import WorkerGroup
from ..errors import Refused
from ..plan_words import Remark
from .host_names import HostNames
from .lora import additions
from .remote_weights import Patches, RemoteWeights, check_interrupt
from .schedule import Schedule

KEY = "ParallelDiT"
Conditions = Callable[[torch.Tensor, torch.Tensor | None, dict[str, Any]], dict[str, torch.Tensor]]


class Handover(NamedTuple):
    """How what ComfyUI's sampling hands to a diffusion model becomes a request.

    conditions: latents, context and the other arguments of `forward` to the engine's conditions; it takes out of the
    last what it uses. geometry: the channels that are sampled, and the patch that the sizes are multiples of.
    sees_images: whether channels beyond those are a condition. visible: what ComfyUI's BaseModel reads of its own
    module, by attribute.
    """

    conditions: Conditions
    geometry: tuple[int, tuple[int, ...]]
    sees_images: bool
    visible: dict[str, Any]


class RemoteDiT(RemoteWeights, torch.nn.Module):
    """Stands where ComfyUI has its diffusion model; holds no weights and sends each forward to the worker group."""

    def __init__(
        self,
        group: WorkerGroup,
        source: ModelSource,
        plan: ParallelPlan,
        handover: Handover,
        dtype: torch.dtype,
        schedule: Schedule,
        names: HostNames,
        note: tuple[Remark, ...] = (),
        name: str = "",
    ) -> None:
        """dtype: what ComfyUI casts the latents to. names: of the weights, by which nodes ask for changes of them.

        note: for the group's status, where the plan is not the one that was asked for. name: of the model, as chosen.
        """
        torch.nn.Module.__init__(self)
        RemoteWeights.__init__(self, group, source.to_json(), plan, sizes_of_source(source), note, name)
        self.__dict__.update(handover.visible)
        self.handover = handover
        self.dtype = dtype
        self.schedule = schedule
        self.names = names
        self.limits = adapter_for(source.model_class).limits(source.config)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor | None = None,
        control: Any = None,
        transformer_options: dict[str, Any] | None = None,
        **extra: torch.Tensor,
    ) -> torch.Tensor:
        """The prediction for latents x (B, C, H, W), or (B, C, F, H, W), at timesteps (B), in the model's own units.

        Channels beyond those that are sampled are a condition. Sizes that are no multiples of the patch are filled up,
        as ComfyUI's own modules do. Raises Refused for what the worker group cannot honour.
        """
        transformer_options = transformer_options or {}
        refuse_patches(control, transformer_options)
        channels, patch = self.handover.geometry
        filled = pad_to_patch_size(x, patch) if x.ndim == 2 + len(patch) else x
        latents = filled[:, :channels] if self.handover.sees_images else filled
        if latents.shape[1] < x.shape[1]:
            extra["image_latents"] = filled[:, channels:]
        conditions = self.handover.conditions(latents, context, extra)
        if extra:
            raise Refused(f"The parallel model cannot honour the conditioning's {', '.join(extra)}.", "Remove it.")
        if self.recording:
            zeros = self.recording.note(latents, timesteps, conditions, transformer_options["cond_or_uncond"])
            return zeros[(..., *(slice(size) for size in x.shape[2:]))]
        with self.group.turn(check_interrupt):
            self.load()
            steps = len(transformer_options.get(SCHEDULE, (0, 0))) - 1
            prediction = self.group.forward(latents, timesteps, conditions, check_interrupt, steps).to(x)
        return prediction[(..., *(slice(size) for size in x.shape[2:]))]

    def takes(self, latents: torch.Tensor) -> bool:
        """Whether the sizes of the latents are multiples of the patch."""
        return not any(size % side for size, side in zip(latents.shape[2:], self.handover.geometry[1], strict=False))

    def check_model(self, plan: ParallelPlan) -> None:
        plan.check_model(**self.limits)

    def adapt(self, key: str | None, patches: Patches) -> None:
        self.group.adapt(key, lambda: additions(self.names, patches), check_interrupt)

    def state_dict(
        self, *, destination: dict | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, torch.Tensor]:
        """The names of ComfyUI's own module, with shapes alone: by these its loaders know what a LoRA is for."""
        found = {} if destination is None else destination
        for name, shape in self.names.shapes.items():
            found[prefix + name] = torch.empty(shape, dtype=self.dtype, device="meta")
        return found

    def __getattr__(self, name: str) -> Any:
        """Raises Refused for the modules that hold the weights in ComfyUI: what looks for them would change them."""
        names = self.__dict__.get("names")
        if names and name in names.modules:
            raise no_weights(f"a bypass LoRA or another change of {name}")
        return super().__getattr__(name)


def refuse_patches(control: Any, transformer_options: dict[str, Any]) -> None:
    """Raises Refused, naming the feature, for anything that would change the inside of the diffusion model."""
    asked = []
    if control is not None:
        asked.append("a ControlNet")
    for key in ("patches", "patches_replace"):
        asked += [f"the model patch {name!r}" for name in transformer_options.get(key, {})]
    options = {"optimized_attention_override": "an attention override", "rope_options": "RoPE scaling"}
    asked += [feature for key, feature in options.items() if transformer_options.get(key)]
    wrappers = transformer_options.get("wrappers", {}).get(WrappersMP.DIFFUSION_MODEL, {})
    asked += [f"the diffusion-model wrapper {name!r}" for name, functions in wrappers.items() if functions]
    if asked:
        raise Refused(
            f"The parallel model cannot honour {', '.join(asked)}: its inside runs in worker processes.",
            "Remove that node, or use the stock loader.",
        )


def no_weights(asked: str) -> Refused:
    return Refused(
        f"The parallel model cannot take {asked}: its weights are in worker processes.",
        "Remove that node, or use the stock loader.",
    )
