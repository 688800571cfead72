"""The MODEL that Parallelize Model returns: to ComfyUI, a ModelPatcher, but without the weights."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any
from unittest.mock import patch

import comfy.model_base
import comfy.model_management
import comfy.model_patcher
import torch
from comfy.patcher_extension import WrappersMP
from comfy_api.torch_helpers.torch_compile import COMPILE_KEY
from comfy_execution.utils import get_executing_context

from ...worker.comfyui.model import cast_weights, map_model
from ...worker.comfyui.patches import PREFIX, pack_patches
from ...worker.comfyui.source import HostSource
from ...worker.wire.tensors import UnsendableError
from ..assumptions import list_broken
from ..errors import Refused
from ..inside.controls import record_all, recorded_in
from .call_batching import KEY, add_call_batching
from .remote_module import MODULE, RemoteModule, remote_module
from .sampling import warn
from .weight_changes import find_merged, is_model_as_lora

NONE: Mapping[str, list] = {}
UNLIMITED = 1e32  # bytes: ComfyUI's value for all of a model
# ComfyUI says this nowhere.
USELESS_LORA = "This LoRA changes nothing: none of its keys is a weight of the model. It is for another model."


def record_run(
    executor: Any,
    noise: torch.Tensor,
    latent_image: torch.Tensor,
    sampler: Any,
    sigmas: torch.Tensor,
    denoise_mask: torch.Tensor | None = None,
    callback: Any = None,
    *args: Any,
    **options: Any,
) -> torch.Tensor:
    """Wraps a sampling. Its steps in the worker group belong to one run."""
    patcher = executor.class_obj.model_patcher
    if not isinstance(patcher, RemoteModelPatcher) or (remote := patcher.remote_module) is None:
        return executor(noise, latent_image, sampler, sigmas, denoise_mask, callback, *args, **options)
    asked = executor.class_obj.model_options.get("transformer_options", {})
    remote.choose_runner(patcher, asked, getattr(sampler, "needs_ranks", False))
    planned, node = remote.planned, get_executing_context()
    runs = planned.group.runs

    def report_step(step: int, denoised: torch.Tensor, latents: torch.Tensor, total: int) -> None:
        runs.progress(step + 1, total)
        if callback is not None:
            callback(step, denoised, latents, total)

    with runs.run(node and node.node_id, planned.name, planned.begin_sampling(), planned.source.model_class) as record:
        if remote.stock.is_active:
            runs.note(reason=remote.stock.why, is_stock=True)
        try:
            found = executor(noise, latent_image, sampler, sigmas, denoise_mask, report_step, *args, **options)
        finally:
            planned.learn_step()
        record.keep_numbers(found)
        return found


def mark_preparation(
    executor: Any,
    patcher: comfy.model_patcher.ModelPatcher,
    noise_shape: Sequence[int],
    conds: Mapping[str, list[dict[str, Any]]],
    *args: Any,
    **options: Any,
) -> Any:
    """Wraps ComfyUI's function that frees memory for a sampling and loads its models. It leaves out networks that the
    ranks run."""
    if not isinstance(patcher, RemoteModelPatcher) or (remote := patcher.remote) is None:
        return executor(patcher, noise_shape, conds, *args, **options)
    conds = record_all(conds)
    patchers = [*patcher.networks_in_ranks(), *(each.control_model_wrapped for each in recorded_in(conds))]
    networks = {each.model: each.model_size() for each in patchers}
    remote.inside.encoder.expect(networks)
    with remote.planned.make_room(sum(networks.values())):
        return executor(patcher, noise_shape, conds, *args, **options)


class RemoteModelPatcher(comfy.model_patcher.ModelPatcher):
    """A ModelPatcher without weights, while the ranks run the model. The worker group applies LoRA. If the ranks cannot
    run a sampling, the model becomes ComfyUI's own, with its weights here: see `StockModel`.

    To ComfyUI it represents the group's memory on ComfyUI's device, where rank 0 computes, too. The free memory that
    ComfyUI sees there (cudaMemGetInfo) already excludes what the ranks hold. So nothing is subtracted again.

    The sizes given here tell ComfyUI how much memory it gains by unloading this model, which it does in its own order
    when other models need memory. They also tell it how much memory to free before the ranks load, unpark or compute.

    When rank 0 is freed, so are ranks on other devices. CUDA itself keeps some hundred MB in each process.
    """

    @property
    def remote_module(self) -> RemoteModule | None:
        """What stands behind the module. None if a node has replaced the module."""
        return remote_module(self.model)

    @property
    def remote(self) -> RemoteModule | None:
        """The same while the ranks run the model. None while ComfyUI's own model runs here."""
        found = self.remote_module
        return None if found is None or found.stock.is_active else found

    def reasons(self) -> list[str]:
        """Returns this patcher's changes of the model that the ranks cannot apply; empty if they can apply all."""
        found = [f"the injection {key!r}" for key, each in self.injections.items() if each]
        found += [f"the weight wrapper of {name}" for name in self.weight_wrapper_patches]
        found += [f"a replacement of {name}" for name in self.object_patches if name == MODULE]
        found += list_broken(type(self.model), type(self.model.diffusion_model), RemoteModelPatcher)
        if self.remote_module is None:
            return found
        weights, hooks = self.remote_module.weights, [self.name_originals(each) for each in self.hook_patches.values()]
        found += [
            f"a hook's change of {name}" for each in hooks for name in sorted(each.keys() - weights.patchable)[:1]
        ]
        patches = map(weights.keep_patchable, (self.patches, *hooks))
        return found + [why for each in patches for why in why_unsendable(each)]

    def forget_load(self) -> None:
        """Tells ComfyUI that nothing is loaded, because the weights were only now read into this process."""
        self.model.model_loaded_weight_memory = 0
        self.model.current_weight_patches_uuid = None
        self.model.device = self.offload_device

    def loaded_clones(self) -> list[comfy.model_management.LoadedModel]:
        """Returns ComfyUI's entries of loaded models that are patchers of the same model."""
        loaded_models = comfy.model_management.current_loaded_models
        return [each for each in loaded_models if each.model is not None and each.model.model is self.model]

    def eject_clones(self) -> None:
        """Ejects the injections of another patcher, which ran before."""
        for loaded in self.loaded_clones():
            if loaded.model:
                loaded.model.eject_model()

    def unload_here(self) -> None:
        """Removes the patches from the weights in this process."""
        for loaded in self.loaded_clones():
            loaded.model_unload()
            comfy.model_management.current_loaded_models.remove(loaded)

    def loaded_size(self) -> int:
        return self.remote.planned.loaded_bytes() if self.remote else super().loaded_size()

    def model_size(self) -> int:
        """Returns the bytes that are loaded, or that the next use will take. After a load it equals `loaded_size`, so
        no part is missing."""
        if self.remote:
            return self.remote.planned.needed_bytes()
        return comfy.model_management.module_size(self.model)

    def current_loaded_device(self) -> torch.device:
        """Tells ComfyUI whether it must free memory for the whole model."""
        if self.remote is None:
            return super().current_loaded_device()
        return self.load_device if self.remote.planned.loaded_bytes() else self.offload_device

    def partially_load(
        self, device_to: torch.device, extra_memory: float = 0, force_patch_weights: bool = False
    ) -> int:
        """Frees the memory that ComfyUI's own allocator caches, because other processes cannot use it. The ranks load
        with the first forward."""
        if self.remote:
            comfy.model_management.soft_empty_cache()
            extra_memory = UNLIMITED
        # ComfyUI has no annotation there, only a default of 0, and passes floats.
        return super().partially_load(device_to, extra_memory, force_patch_weights)  # pyright: ignore[reportArgumentType]

    def load(
        self,
        device_to: torch.device | None = None,
        lowvram_model_memory: float = 0,
        force_patch_weights: bool = False,
        full_load: bool = False,
    ) -> None:
        """Makes the ranks read and patch the weights. There are no weights here to move."""
        if self.remote is None:
            super().load(device_to, lowvram_model_memory, force_patch_weights, full_load)  # pyright: ignore[reportArgumentType]
            return
        self.model.model_lowvram = False
        self.model.device = device_to
        self.model.model_loaded_weight_memory = self.model_size()
        self.model.current_weight_patches_uuid = self.patches_uuid
        self.remote.use_patches(self)

    def unpatch_model(self, device_to: torch.device | None = None, unpatch_weights: bool = True) -> None:
        if self.remote is None:
            super().unpatch_model(device_to, unpatch_weights)
            return
        super().unpatch_model(None, unpatch_weights)
        if unpatch_weights:
            self.remote.weights.show({})
        self.model.device = device_to

    def partially_unload(
        self, device_to: torch.device, memory_to_free: float = 0, force_patch_weights: bool = False
    ) -> int:
        """Frees the ranks' cached memory. If that is too little, ComfyUI unloads the whole model."""
        if self.remote:
            return self.remote.planned.trim()
        return super().partially_unload(device_to, memory_to_free, force_patch_weights)  # pyright: ignore[reportArgumentType]

    def detach(self, unpatch_all: bool = True) -> comfy.model_base.BaseModel:
        """Frees the ranks' memory if unpatch_all is set. Without it, ComfyUI calls this when another clone takes over
        or this one is deleted."""
        if self.remote and unpatch_all:
            self.remote.planned.free()
        return super().detach(unpatch_all)

    @cached_property
    def weight_names(self) -> frozenset[str]:
        """Kept, because a merge of n weights calls ComfyUI's `add_patches` n times. Each call looks for one name."""
        return frozenset(self.model.state_dict())

    def add_patches(self, patches: dict, strength_patch: float = 1.0, strength_model: float = 1.0) -> list:
        """Keeps the patches for this model. `(None,)` only scales a weight; a list is a weight of another model, which
        may have some that this one lacks. Says on the node if a LoRA has no weight of this model."""
        names = self.weight_names
        with patch.object(self.model, "state_dict", lambda: names):
            added = super().add_patches(patches, strength_patch, strength_model)
        if not added and strength_patch and not any(isinstance(value, list) for value in patches.values()):
            warn(USELESS_LORA)
        return added

    def pre_run(self) -> None:
        """Called before each sampling. Selects this patcher's LoRA among the patchers that share the model."""
        super().pre_run()
        if self.remote:
            self.remote.use_patches(self)
            if self.remote.inside.encoder.kept is not None:  # else `choose_runner` has begun this one
                self.remote.begin_sampling()
            self.remote.group.resident = self.find_origin()

    def find_origin(self) -> RemoteModelPatcher:
        """Returns the loader's patcher, of which this one is a clone. While it lives, ComfyUI remembers the model as
        loaded. The group still holds the model after the nodes are deleted, so some patcher must represent it."""
        patcher = self
        while patcher.parent is not None:
            patcher = patcher.parent
        return patcher

    def model_patches_models(self) -> list[comfy.model_patcher.ModelPatcher]:
        """Returns the networks that nodes run in this process. The networks inside of the model are in the ranks."""
        if self.remote is None:
            return super().model_patches_models()
        wrapper: Any = self.model_options.get("model_function_wrapper")
        return wrapper.models() if hasattr(wrapper, "models") else []

    def networks_in_ranks(self) -> list[comfy.model_patcher.ModelPatcher]:
        """Returns the networks that the ranks load to run inside of the model."""
        here = self.model_patches_models()
        return [each for each in super().model_patches_models() if each not in here]

    def deepclone_multigpu(self, *_args: Any, **_kwargs: Any) -> Any:
        raise Refused(
            "The parallel model cannot take a copy of the model on another device (the plan's ranks are on all of "
            "them): its weights are in worker processes.",
            "Remove that node, or bypass Parallelize Model.",
        )

    def take_over(self, reason: str) -> None:
        """Brings the weights here, with this patcher's patches."""
        if self.remote:
            self.remote.use_patches(self)
            self.remote.take_over([reason])

    def get_key_patches(self, filter_prefix: str | None = None) -> dict:
        """Returns the weights for a merge, with their changes. Each names its file, also while the weights are here."""
        found = super().get_key_patches(filter_prefix)
        if self.remote_module is None:
            return found
        for key, ((weight, convert), *changes) in found.items():
            if key.startswith(PREFIX):
                weight = self.remote_module.weights.defer(key.removeprefix(PREFIX), weight)
                found[key] = [(weight, convert), *changes]
        return found

    def model_state_dict(self, filter_prefix: str | None = None) -> dict:
        """Returns the weights. A caller that asks for a part of them computes with them and with all patches that
        ComfyUI has loaded, so they come here."""
        if filter_prefix is not None and self.remote and self.patches:
            self.take_over("a node that reads weights")
        return super().model_state_dict(filter_prefix)

    def state_dict_for_saving(self, *args: Any, **kwargs: Any) -> dict:
        """Returns the weights with all patches, after ComfyUI has loaded the model to save it. The weights are read
        into this process."""
        self.take_over("a node that saves the model")
        return super().state_dict_for_saving(*args, **kwargs)

    def add_hook_patches(
        self, hook: Any, patches: dict, strength_patch: float = 1.0, strength_model: float = 1.0
    ) -> list:
        """Keeps the weight changes for a part of the conditioning or of the steps."""
        added = super().add_hook_patches(hook, patches, strength_patch, strength_model)
        if not added and strength_patch:
            warn(USELESS_LORA)
        return added

    def patch_hooks(self, hooks: Any) -> None:
        """Adds the changes of these hooks to the following calls."""
        if self.remote is None:
            super().patch_hooks(hooks)
            return
        strengths = [(id(hook.hook_ref), hook.strength) for hook in (hooks.hooks if hooks else ())]
        self.remote.use_patches(self, self.name_originals(self.get_combined_hook_patches(hooks)), strengths)
        self.current_hooks = hooks

    def name_originals(self, patches: Mapping[str, list]) -> Mapping[str, list]:
        """Returns the changes of hooks, in which a model as LoRA is a merge's change that names this model's weight."""
        if self.remote_module is None or not any(map(is_model_as_lora, chain(*patches.values()))):
            return patches
        return self.remote_module.weights.name_originals(patches, self.get_key_patches())

    def unpatch_hooks(self, whitelist_keys_set: set[str] | None = None) -> None:
        if self.remote is None:
            super().unpatch_hooks(whitelist_keys_set)  # pyright: ignore[reportArgumentType]
        elif self.current_hooks is not None:
            self.patch_hooks(None)

    def add_wrapper_with_key(self, wrapper_type: str, key: str, wrapper: Any) -> None:
        if self.remote and key == COMPILE_KEY:  # the ranks compile; `use_patches` sends its settings
            return
        super().add_wrapper_with_key(wrapper_type, key, wrapper)


def why_unsendable(patches: Mapping[str, list]) -> list[str]:
    """Returns why changes of weights cannot be sent to the ranks; empty if they can."""
    try:
        pack_patches(patches, find_merged)
    except UnsendableError as error:
        return [f"a change of weights ({error})"]
    return []


def stock_patcher(source: HostSource, disable_dynamic: bool = False) -> comfy.model_patcher.ModelPatcher:
    """Returns the MODEL of a file as the stock loader does, with its weights in this process. Raises ModelFileError.
    disable_dynamic: as in ComfyUI's own loading functions; this MODEL never has DynamicVRAM."""
    model, _, dtypes = map_model(source)
    cast_weights(model.diffusion_model, dtypes)
    devices = comfy.model_management.get_torch_device(), comfy.model_management.unet_offload_device()
    patcher = comfy.model_patcher.ModelPatcher(model, *devices)
    patcher.cached_patcher_init = (stock_patcher, (source,))
    return patcher


def remote_patcher(model: comfy.model_base.BaseModel, remote: RemoteModule) -> RemoteModelPatcher:
    """Returns the MODEL of a BaseModel whose diffusion model runs in the worker group, through `remote`."""
    devices = comfy.model_management.get_torch_device(), comfy.model_management.unet_offload_device()
    model.device = devices[1]  # nodes move tensors there to compute with weights
    patcher = RemoteModelPatcher(model, *devices)
    patcher.cached_patcher_init = (stock_patcher, (remote.weights.source,))  # for deep copies, to train
    # A reference cycle would keep it alive after its last use, and ComfyUI would report a leaked model.
    whole_call = weakref.WeakMethod(model.memory_required)

    def memory_required(input_shape: Sequence[int], cond_shapes: Mapping[str, list] = NONE) -> float:
        estimate = whole_call()
        if estimate and remote.stock.is_active:
            return estimate(input_shape, cond_shapes)
        return remote.planned.working_bytes(estimate(input_shape, cond_shapes), input_shape) if estimate else 0

    model.memory_required = memory_required
    patcher.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, KEY, record_run)
    patcher.add_wrapper_with_key(WrappersMP.PREPARE_SAMPLING, KEY, mark_preparation)
    add_call_batching(patcher, remote.batcher)
    return patcher
