"""The MODEL that the loader returns: a stock ModelPatcher whose diffusion model runs in the worker group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import comfy.model_base
import comfy.model_management
import comfy.model_patcher
import torch
from comfy.ldm.common_dit import pad_to_patch_size
from comfy.patcher_extension import WrappersMP

from ..parallel_backend.loading import ModelSource
from ..parallel_backend.plan import ParallelPlan
from ..worker.client import OnStep, WorkerGroup
from ..worker.sampler_call import SamplerCall
from ..worker.tensors import Tensors
from .host_names import HostNames
from .lora import Patches, accept, additions

KEY = "ParallelDiT"
Conditions = Callable[[torch.Tensor, torch.Tensor | None, dict[str, Any]], dict[str, torch.Tensor]]
check_interrupt = comfy.model_management.throw_exception_if_processing_interrupted


class RecordedForward(NamedTuple):
    """latents: those of all branches. branches: of each part of the batch, 0 for cond and 1 for uncond."""

    latents: torch.Tensor
    conditions: Tensors
    branches: list[int]


class Schedule(NamedTuple):
    """config: scheduler_config.json of the model's folder, empty without one. default, linear_sigmas: the family's, see
    the engine's `build_scheduler` and `Stepper.prepare`."""

    config: dict[str, Any]
    default: dict[str, Any]
    linear_sigmas: bool


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


class RemoteDiT(torch.nn.Module):
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
    ) -> None:
        """dtype: what ComfyUI casts the latents to. names: of the weights, by which nodes ask for changes of them."""
        super().__init__()
        self.__dict__.update(handover.visible)
        self.handover = handover
        self.group = group
        self.source = source.to_json()
        self.plan = plan
        self.dtype = dtype
        self.schedule = schedule
        self.names = names
        self.patched: tuple[str | None, Patches] = (None, {})
        self.recorded: list[RecordedForward] | None = None

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
        as ComfyUI's own modules do. Raises ValueError for what the worker group cannot honour.
        """
        refuse_patches(control, transformer_options or {})
        channels, patch = self.handover.geometry
        filled = pad_to_patch_size(x, patch) if x.ndim == 2 + len(patch) else x
        latents = filled[:, :channels] if self.handover.sees_images else filled
        if latents.shape[1] < x.shape[1]:
            extra["image_latents"] = filled[:, channels:]
        conditions = self.handover.conditions(latents, context, extra)
        if extra:
            raise ValueError(f"The parallel model cannot honour the conditioning's {', '.join(extra)}; remove it.")
        if self.recorded is not None:
            self.recorded.append(RecordedForward(latents, conditions, transformer_options["cond_or_uncond"]))
            return torch.zeros_like(latents[(..., *(slice(size) for size in x.shape[2:]))])
        self.load()
        prediction = self.group.forward(latents, timesteps, conditions, check_interrupt).to(x)
        return prediction[(..., *(slice(size) for size in x.shape[2:]))]

    def takes(self, latents: torch.Tensor) -> bool:
        """Whether the sizes of the latents are multiples of the patch."""
        return not any(size % side for size, side in zip(latents.shape[2:], self.handover.geometry[1], strict=False))

    def sample(
        self, call: SamplerCall, tensors: Tensors, conditions: Tensors, negative: Tensors, on_step: OnStep
    ) -> torch.Tensor:
        """The whole sampler call, see WorkerGroup.sample; the latents, on the CPU."""
        self.load()
        return self.group.sample(call, tensors, conditions, negative, check_interrupt, on_step)

    def load(self) -> None:
        """Makes sure that the worker group holds this model under this plan, with the LoRA of the patcher that runs."""
        self.group.load(self.source, self.plan.to_json(), self.plan.world_size, check_interrupt)
        key, patches = self.patched
        self.group.adapt(key, lambda: additions(self.names, patches), check_interrupt)

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[RecordedForward]]:
        """While entered, forwards are written down and not run; they give zeros."""
        self.recorded = []
        try:
            yield self.recorded
        finally:
            self.recorded = None

    def state_dict(
        self, *, destination: dict | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, torch.Tensor]:
        """The names of ComfyUI's own module, with shapes alone: by these its loaders know what a LoRA is for."""
        found = {} if destination is None else destination
        for name, shape in self.names.shapes.items():
            found[prefix + name] = torch.empty(shape, dtype=self.dtype, device="meta")
        return found

    def __getattr__(self, name: str) -> Any:
        """Raises ValueError for the modules that hold the weights in ComfyUI: what looks for them would change them."""
        names = self.__dict__.get("names")
        if names and name in names.modules:
            raise no_weights(f"a bypass LoRA or another change of {name}")
        return super().__getattr__(name)


def refuse_patches(control: Any, transformer_options: dict[str, Any]) -> None:
    """Raises ValueError, naming the feature, for anything that would change the inside of the diffusion model."""
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
        raise ValueError(
            f"The parallel model cannot honour {', '.join(asked)}: its inside runs in worker processes. "
            "Remove that node, or use the stock loader."
        )


def refuse_nested(executor: Any, *args: Any, **options: Any) -> torch.Tensor:
    """Stands around a sampling, which ComfyUI runs on the parts of a nested latent packed into one tensor."""
    if len(options.get("latent_shapes") or ()) > 1:
        raise ValueError(
            "The parallel model takes no latent of several parts, such as video with audio (a nested latent); "
            "use the stock loader, or a latent of one part."
        )
    return executor(*args, **options)


class RemoteModelPatcher(comfy.model_patcher.ModelPatcher):
    """A ModelPatcher that has LoRA applied by the worker group, and refuses whatever else reads or changes the model's
    weights, of which it has none."""

    def add_patches(self, patches: dict, strength_patch: float = 1.0, strength_model: float = 1.0) -> list:
        """Keeps what is for this model; see `accept` for what it raises."""
        if strength_model != 1.0:
            raise no_weights("a model merge, or another node that scales weights")
        own = accept(self.model.diffusion_model.names, patches, strength_patch)
        return super().add_patches(own, strength_patch)

    def pre_run(self) -> None:
        """Called before each sampling: of the patchers that share the model, this one's LoRA is wanted."""
        super().pre_run()
        if isinstance(self.model.diffusion_model, RemoteDiT):
            key = str(self.patches_uuid) if self.patches else None
            self.model.diffusion_model.patched = (key, dict(self.patches))

    def model_state_dict(self, filter_prefix: str | None = None) -> dict:
        raise no_weights("a node that reads weights")

    def add_hook_patches(self, *_args: Any, **_kwargs: Any) -> list:
        raise no_weights("a hook LoRA")

    def set_injections(self, key: str, injections: list) -> None:
        raise no_weights(f"the injection {key!r}")

    def get_key_patches(self, filter_prefix: str | None = None) -> dict:
        raise no_weights("a model merge")

    def state_dict_for_saving(self, *_args: Any, **_kwargs: Any) -> dict:
        raise no_weights("a node that saves the model")

    def add_object_patch(self, name: str, obj: Any) -> None:
        if name.startswith("diffusion_model"):
            raise no_weights(f"a replacement of {name}")
        super().add_object_patch(name, obj)


def no_weights(asked: str) -> ValueError:
    return ValueError(
        f"The parallel model cannot take {asked}: its weights are in worker processes. "
        "Remove that node, or use the stock loader."
    )


def remote_model(model: comfy.model_base.BaseModel, diffusion_model: RemoteDiT) -> RemoteModelPatcher:
    """A MODEL of a weight-less BaseModel and the RemoteDiT that does its work."""
    model.model_config.set_inference_dtype(diffusion_model.dtype, None)
    model.manual_cast_dtype = None
    model.diffusion_model = diffusion_model
    model.model_config.unet_config.update(diffusion_model.names.detected)
    # The memory is the workers'. Zero here also lets ComfyUI batch cond and uncond, which the cfg axis splits again.
    model.memory_required = lambda *_args, **_kwargs: 0
    patcher = RemoteModelPatcher(
        model.eval(),
        load_device=comfy.model_management.get_torch_device(),
        offload_device=comfy.model_management.unet_offload_device(),
        size=1,  # bytes; 0 would have ComfyUI count the weights
    )
    patcher.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, KEY, refuse_nested)
    return patcher
