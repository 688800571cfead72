"""A model of ComfyUI's own in a rank: loaded from its file, on the mesh, with what nodes add to its weights."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from parallel_backend.costs.memory import token_factor
from parallel_backend.errors import ModelFileError, RequestError
from parallel_backend.groups.calls import Call, Output, share_out
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.parallel_model import ParallelModel, moved
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.denoiser import Pass
from parallel_backend.weights.flat_block import FlatBlock, Values, alias
from parallel_backend.weights.loading import Check, go_on
from parallel_backend.weights.parking import Parking
from parallel_backend.weights.prefetcher import BlockPrefetcher
from parallel_backend.weights.sizes import WeightSizes
from parallel_backend.weights.stores import Store

from ..comfyui.functions import FunctionDecoder
from ..comfyui.model import build, cast_weights, detect, dtype_of, import_comfyui, load_weights
from ..comfyui.patched_options import COMPILED, OPTIONS, CallContext, decode_options, set_attributes
from ..comfyui.patches import Patch, offload_patched, patch_weight, restore_weight, set_patches
from ..comfyui.source import PARTS, HostSource
from ..wire.tensors import Tensors
from .request_checks import made

CPU = torch.device("cpu")
PREFIX = "diffusion_model."  # of a module's names, in its patcher's


@dataclass
class HostModel:
    """source: the file. patcher: ComfyUI's own, which changes the weights and puts them back. module: the model on the
    mesh. in_file: by name, the weights as the file has them, where they are in its pages. dtypes: by name in the
    module, of weights that the file has in another dtype; uncast: those that are yet as it has them."""

    source: HostSource
    patcher: Any
    module: ParallelModel
    parking: Parking
    decoder: FunctionDecoder
    in_file: Mapping[str, torch.Tensor]
    dtypes: Mapping[str, torch.dtype]
    uncast: dict[str, torch.dtype]
    rewritten: set[str] = field(default_factory=set)  # weights, other than the patcher's, that are not as the file's
    on_use: list[torch.Tensor] = field(default_factory=list)  # what changes weights as they are dequantised
    adapted: bool = False  # whether the weights are other than the file's
    working_bytes: int = 0  # what the device has room for beside the weights, as ComfyUI estimates it

    @classmethod
    def load(cls, source: HostSource, mesh: Mesh, check: Check = go_on) -> HostModel:
        """The model with all of its weights on the device. Runs no collectives. Raises as `build` does."""
        found = cls.build(source, mesh, check)
        found.bring((), None, check)
        return found

    @classmethod
    def build(cls, source: HostSource, mesh: Mesh, check: Check = go_on) -> HostModel:
        """Maps the file, whose pages the ranks of a machine share; `bring` has the weights computed with. Runs no
        collectives.

        Raises ModelFileError, PlanError, or what `check` does, which is asked between the steps.
        """
        import_comfyui(source)
        import comfy.model_patcher

        model, in_file, dtypes = mapped(source, check)
        uncast = dict(dtypes)
        compute = dtype_of(source.cast) or dtype_of(source.dtype) or torch.bfloat16
        module = ParallelModel(model.diffusion_model, mesh, compute, uncast)
        held = dict(module.model.named_parameters())  # a stage has let go of the blocks of others
        for name in uncast.keys() - held.keys():
            del uncast[name]
        dtypes = dict(uncast)
        patcher = comfy.model_patcher.ModelPatcher(model, load_device=mesh.device, offload_device=CPU)
        parking = Parking(model.diffusion_model, mesh.device)
        return cls(source, patcher, module, parking, FunctionDecoder(source.comfyui), in_file, dtypes, uncast)

    def bring(self, places: Collection[int], store: Store | None, check: Check = go_on) -> None:
        """Has the weights of these of this rank's blocks fetched from a store, and all others on the device, or where
        ComfyUI puts them. Raises as `BlockPrefetcher.rearrange` does, or what `check` does."""

        def values(row: FlatBlock) -> Values:
            check()
            return row.block.get_parameter

        self.fetched.rearrange(places, store, values)
        for name in self.fetched_names():  # they are as they are to be, and no longer the patcher's
            self.uncast.pop(name.removeprefix(PREFIX), None)
            if self.patcher.patches.pop(name, None):
                self.patcher.backup.pop(name, None)
                self.rewritten.add(name)
        # Where all go to the device, one after the other does: a model's worth of RAM is not taken meanwhile.
        cast_weights(self.module.model, self.uncast, self.mesh.device if self.fetched.blocks else None)
        self.uncast.clear()
        self.fetched.park_with(self.parking, self.on_use)
        self.place(self.working_bytes)

    @property
    def fetched(self) -> BlockPrefetcher:
        return self.module.fetched

    def fetched_names(self) -> dict[str, tuple[int, str]]:
        """By the patcher's names, what is fetched: each parameter's block, and its name there."""
        return {f"{PREFIX}{name}": (place, own) for name, place, own in self.fetched.names()}

    @property
    def mesh(self) -> Mesh:
        return self.module.mesh

    @property
    def sizes(self) -> WeightSizes:
        """Of all the model's weights."""
        return self.module.sizes

    @property
    def weight_bytes(self) -> int:
        """Of all weights that this rank computes with and keeps, on its device or in RAM of its own."""
        return self.patcher.model_size() - self.fetched.elsewhere

    @property
    def resident_bytes(self) -> int:
        """Of those that are on its device; the others wait in RAM and are brought there layer by layer."""
        return 0 if self.parking.is_parked else self.patcher.loaded_size() - self.fetched.elsewhere

    def check_plan(self, plan: ParallelPlan) -> None:
        """Raises PlanError if the model does not allow the plan."""
        self.module.check_plan(plan)

    def token_count(self, latents: Sequence[int]) -> int:
        """Of latents of this shape, (B, C, …); 0 where that is not known."""
        return self.module.token_count(latents)

    def forget(self) -> None:
        """Drops what is remembered of the last run."""
        self.decoder.start_run("")

    def replan(self, mesh: Mesh) -> None:
        """Puts another plan on the weights that are there. Runs no collectives. Raises PlanError."""
        self.module.replan(mesh)

    def place(self, working_bytes: int = 0, whole: bool = False) -> None:
        """Has ComfyUI put the weights on the device: all, or of a class whose blocks are not known where its flags and
        the free memory say so as many as leave `working_bytes`, and the rest is brought there layer by layer. Runs no
        collectives.

        whole: they are all there.
        """
        import comfy.model_management

        whole = whole or bool(self.fetched.blocks)
        comfy.model_management.load_models_gpu([self.patcher], memory_required=working_bytes, force_full_load=whole)
        self.working_bytes = working_bytes
        self.fetched.rebind()  # ComfyUI makes new parameters of quantised weights

    def working(self, *latents: Sequence[int], axis: Axis | None = None) -> int:
        """The bytes that a forward takes beside the weights, for latents of these shapes, (B, C, …), by ComfyUI's
        estimate: of the largest share of rows and tokens, alike on all ranks. axis: over which the rows are shared; the
        plan's without."""
        axis = axis or self.mesh["batch"]
        shapes = [[max(axis.sizes(rows)), *sizes] for rows, *sizes in latents]
        return math.ceil(sum(map(self.patcher.memory_required, shapes)) * token_factor(self.mesh.plan))

    def working_of_calls(self, calls: Sequence[Call]) -> int:
        """Of the call that takes the most."""
        parts = share_out([call.size for call in calls], self.mesh["batch"])
        shapes = [[each.shape for each in call.latents] for call in calls]
        return max(self.working(*shapes[part.call], axis=part.rows) for part in parts)

    def limit_weights(self, free: int) -> int:
        """What weights may have of so much memory of the device, as ComfyUI's flags say."""
        import comfy.model_management as management

        if management.vram_state in (management.VRAMState.HIGH_VRAM, management.VRAMState.SHARED):
            return sys.maxsize
        if management.vram_state == management.VRAMState.NO_VRAM:
            return 0
        left = max(management.minimum_inference_memory() - self.working_bytes, management.extra_reserved_memory())
        return free - int(left)

    def patch(self, patches: Sequence[Patch], tensors: Tensors) -> None:
        """Gives the weights these changes in place of those that they had; without any, they are as in the file.

        Outside of inference mode, where quantised weights cannot be changed. Runs no collectives.
        """
        whole = not self.patcher.model.model_lowvram
        self.patcher.unpatch_model(None if whole else CPU)
        self.on_use = set_patches(self.patcher, patches, tensors, self.mesh.device)
        self.fetched.park_with(self.parking, self.on_use)
        self.patch_others()
        offload_patched(self.patcher, {name: held for name, held in self.in_file.items() if self.is_as_stored(name)})
        self.place(self.working_bytes, whole)
        self.adapted = bool(patches)
        logging.info("the weights have changes of %d of them", len({patch.name for patch in patches}))

    def patch_others(self) -> None:
        """Gives the weights that ComfyUI's patcher cannot change and put back within memory what it has for them, one
        after the other, and takes it off others: those that are fetched; and of a model that is all on the device,
        those in another dtype than the file's, of which the patcher would keep a copy each in RAM."""
        fetched, wanted = self.fetched_names(), self.patcher.patches
        cast = {f"{PREFIX}{name}" for name in self.dtypes} if self.fetched.blocks else set()
        others = wanted.keys() & (fetched.keys() | cast)
        again = self.rewritten | others
        in_file = self.in_file if all(name in self.in_file for name in again) else mapped(self.source)[1]
        for name in sorted(again):
            stored = in_file[name]
            original = stored if self.is_as_stored(name) else stored.to(self.dtypes[name.removeprefix(PREFIX)])
            value = patch_weight(self.patcher, name, original, self.mesh.device) if name in others else original
            self.give(name, fetched.get(name), value)
            del value  # it is on the device
        self.rewritten = others
        self.patcher.patches = {name: changes for name, changes in wanted.items() if name not in others}

    def give(self, name: str, fetched: tuple[int, str] | None, value: torch.Tensor) -> None:
        """Has a weight be this from here on. fetched: its block and its name there, if it is."""
        if fetched:
            self.fetched.rewrite(*fetched, value)
        else:
            restore_weight(self.patcher, name, value if self.is_as_stored(name) else value.to(self.mesh.device))

    def is_as_stored(self, name: str) -> bool:
        """Whether a weight is computed with in the dtype that the file has."""
        return name.removeprefix(PREFIX) not in self.dtypes

    def refuses_alike(self, sizes: Sequence[int]) -> bool:
        """Whether all ranks refuse at the same place what cannot be run, of calls with batches of these sizes.

        Each runs rows of the only call, and has no stage before it. Else one may wait for another that has refused.
        """
        return len(sizes) == 1 and all(self.mesh["batch"].sizes(sizes[0])) and self.module.link is None

    def call(self, calls: Sequence[Call]) -> list[Output] | None:
        """The model's predictions on global rank 0, one a call; None elsewhere. Tensors may be anywhere."""
        given = [self.prepared(call.kwargs) for call in calls]
        context = given[0][1]
        with self.being(context):  # of a patcher, whose calls these are
            found = [call._replace(kwargs=kwargs) for call, (kwargs, _) in zip(calls, given, strict=True)]
            return self.module.run_calls(found, context.steps)

    def passes(self, passes: Sequence[Pass]) -> tuple[list[Pass], CallContext]:
        """The forwards of a sampler's step as the module takes them, and what the model is to be meanwhile."""
        given = [self.prepared(each.conditions.kwargs) for each in passes]
        found = [
            replace(each, conditions=each.conditions._replace(kwargs=kwargs))
            for each, (kwargs, _) in zip(passes, given, strict=True)
        ]
        return found, given[0][1]

    @torch.inference_mode()
    def part(self, method: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What another method of the model gives on this rank. Raises RequestError for one that it does not have."""
        device, run = self.mesh.device, getattr(self.module.model, method, None)
        if not callable(run) or method not in PARTS:
            raise RequestError(f"{type(self.module.model).__name__} has no {method!r} for the ranks to run.")
        return run(*moved(args, device), **moved(kwargs, device))

    def compiles_anew(self, kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """The arguments of `torch.compile` that a node asks for in a call's, where they are others than the last."""
        asked = kwargs.get(OPTIONS, {}).get(COMPILED) or {}
        return {} if asked == self.module.compiled.settings else asked

    @contextmanager
    def being(self, context: CallContext) -> Iterator[None]:
        """While entered, the model is what was asked for."""
        with set_attributes(self.module.model, context.attributes):
            self.module.compiled.asked = context.compiled
            try:
                yield
            finally:
                self.module.compiled.asked = None

    def prepared(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], CallContext]:
        """A call's arguments on this rank's device, with functions in the options in place of what describes them; and
        what the model is to be meanwhile. Raises RequestError."""
        kwargs = moved(kwargs, self.mesh.device)
        if OPTIONS not in kwargs:
            return kwargs, CallContext()
        options, context = made(lambda values: decode_options(values, self.decoder), kwargs[OPTIONS], "options")
        return {**kwargs, OPTIONS: options}, context


def mapped(source: HostSource, check: Check = go_on) -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.dtype]]:
    """ComfyUI's model with its parameters as the file has them; by name, those that are in the file's pages; and of
    which the model has other dtypes. Raises ModelFileError, or what `check` does."""
    config, weights, beside = detect(source.file, source.config)
    if config is None:
        raise ModelFileError(f"ComfyUI does not know what model {source.file} holds.", "Download it again.")
    check()
    model = build(config, weights, beside, dtype_of(source.dtype), dtype_of(source.cast), None, source.fast_fp8)
    pages = {weight.data_ptr() for weight in weights.values()}
    missing, dtypes = load_weights(model, weights)
    if missing:
        raise ModelFileError(
            f"{len(missing)} weights of {source.model_class} are not in {source.file}, the first is {missing[0]}; "
            "the file is incomplete or of another model."
        )
    check()
    return model, {name: alias(held) for name, held in model.named_parameters() if held.data_ptr() in pages}, dtypes
