"""One of ComfyUI's own models in a rank: it loads the file, applies the plan, and applies nodes' changes of weights."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from parallel_backend.costs.memory import token_factor
from parallel_backend.errors import ModelFileError, RequestError
from parallel_backend.groups.calls import Call, Output, share_out
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.models.checks import attention_sizes_of
from parallel_backend.models.parallel_mlp import SPLITS
from parallel_backend.parallel_model import ParallelModel, moved
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.passes import Pass
from parallel_backend.seams.forward import NodeCode
from parallel_backend.weights.flat_block import FlatBlock, Values, aliases
from parallel_backend.weights.loading import Check, go_on
from parallel_backend.weights.parking import Parking
from parallel_backend.weights.prefetcher import BlockPrefetcher
from parallel_backend.weights.sizes import WeightSizes
from parallel_backend.weights.stores import Store

from ...comfyui.call_keys import CONTROL, GRAPH, KERNEL, OPTIONS, SAMPLING
from ...comfyui.entry import enter_at
from ...comfyui.model import cast_weights, dtype_of, import_comfyui, map_model
from ...comfyui.patches import PREFIX, MergedFile, offload_patched, patch_weight, set_patches
from ...comfyui.source import SENT_METHODS, HostSource
from ...inside.changes import Leftovers, apply_changes
from ...inside.code_files import CodeFiles
from ...inside.decoder import Decoder
from ...wire.operations import FORWARD
from ...wire.tensors import Tensors
from ..request_checks import parse_field
from .added_networks import AddedNetworks, decode_control
from .attention_kernels import HostKernel, choose_kernel
from .call_context import CallContext, context_of, decode_options

CPU = torch.device("cpu")
Asked = TypeVar("Asked", Call, Pass)


@dataclass(eq=False)
class HostModel:
    """patcher: ComfyUI's own; it changes the weights and restores them.
    parallel: the model on the mesh.
    in_file: by name, the weights in the file's pages, as the file has them.
    dtypes: by name in the diffusion model, the dtype of weights that the file has in another dtype.
    kernels: by name, those that nodes chose for attention under this plan; or why a rank cannot use it, in words."""

    source: HostSource
    patcher: Any
    parallel: ParallelModel
    parking: Parking
    decoder: Decoder
    networks: AddedNetworks
    in_file: Mapping[str, torch.Tensor]
    dtypes: Mapping[str, torch.dtype]
    kernels: dict[str, HostKernel | str] = field(default_factory=dict)
    rewritten: set[str] = field(default_factory=set)  # weights changed here, not by the patcher
    on_use: list[torch.Tensor] = field(default_factory=list)  # tensors that change weights while they are dequantised
    leftovers: Leftovers = field(default_factory=Leftovers)
    placed: ParallelPlan | None = None  # see `PlacedModel`
    placed_for: tuple[str, int] = ("", 0)
    bringing: int = 0
    copy: Any = None  # of the file, see `bring_copy`
    patched: str = ""  # the key of the changes to the weights; empty for none
    working_bytes: int = 0  # bytes that a forward needs on the device in addition to the weights, by ComfyUI's estimate

    @classmethod
    def build(cls, source: HostSource, mesh: Mesh, check: Check = go_on) -> HostModel:
        """Maps the file, whose pages the ranks of a machine share. `bring` then brings the weights. Runs no
        collectives. check: called between the steps; it may raise. Raises ModelFileError, PlanError, or what `check`
        raises."""
        import_comfyui(source)
        import comfy.model_patcher
        from comfy.quant_ops import QuantizedTensor

        from ...comfyui.quantised_rows import split_rows

        SPLITS[QuantizedTensor] = split_rows
        model, in_pages, dtypes = map_model(source, check)
        in_file = aliases(model, in_pages)
        compute = dtype_of(source.cast) or dtype_of(source.dtype) or torch.bfloat16
        parallel = ParallelModel(model.diffusion_model, mesh, compute, dtypes)
        parameters = dict(parallel.model.named_parameters())  # a stage has released other stages' blocks
        for name in dtypes.keys() - parameters.keys():
            del dtypes[name]
        patcher = comfy.model_patcher.ModelPatcher(model, load_device=mesh.device, offload_device=CPU)
        parking = Parking(model.diffusion_model, mesh.device)
        files = CodeFiles(source.comfyui, source.packs)
        decoder = Decoder(files, model.diffusion_model, lambda: parallel.mesh.device)
        networks = AddedNetworks(model, parallel)
        parallel.complete = networks.complete
        return cls(source, patcher, parallel, parking, decoder, networks, in_file, dtypes)

    def bring(self, numbers: Collection[int], store: Store | None, check: Check = go_on) -> None:
        """Lets the weights of these blocks be fetched from a store. Puts all others on the device, or where ComfyUI
        puts them.

        numbers: of this rank's blocks. Raises what `BlockPrefetcher.rearrange` raises, or what `check` raises.
        """

        def values(row: FlatBlock) -> Values:
            check()
            return row.block.get_parameter

        self.fetched.rearrange(numbers, store, values)
        fetched, find = self.fetched_names(), self.parallel.model.get_parameter
        for name in fetched:  # their values are written; the patcher must not write them again
            if self.patcher.patches.pop(name, None):
                self.patcher.backup.pop(name, None)
                self.rewritten.add(name)
        others = {name: dtype for name, dtype in self.dtypes.items() if f"{PREFIX}{name}" not in fetched}
        uncast = {name: dtype for name, dtype in others.items() if find(name).dtype != dtype}
        # If all weights go to the device, they go one after the other. So the whole model is never in RAM.
        cast_weights(self.parallel.model, uncast, self.mesh.device if self.fetched.blocks else None, check)
        for number, block in enumerate(self.fetched.blocks):  # as ComfyUI would do below, without a check between them
            if number not in numbers:
                check()
                block.to(self.mesh.device)
        self.fetched.park_with(self.parking, self.on_use)
        self.load_onto_device(self.working_bytes)

    @property
    def fetched(self) -> BlockPrefetcher:
        return self.parallel.fetched

    def fetched_names(self) -> dict[str, tuple[int, str]]:
        """Returns each fetched parameter's block and its name in the block, by the patcher's name."""
        return {f"{PREFIX}{name}": (number, own) for name, number, own in self.fetched.names()}

    @property
    def mesh(self) -> Mesh:
        return self.parallel.mesh

    @property
    def sizes(self) -> WeightSizes:
        """The sizes of all weights of the model."""
        return self.parallel.sizes

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights that this rank computes with and keeps, on its device or in its own RAM."""
        return self.patcher.model_size() - self.fetched.elsewhere

    @property
    def resident_bytes(self) -> int:
        """The bytes of the weights on its device. The others are in RAM and are brought to the device layer by
        layer."""
        return 0 if self.parking.is_parked else self.patcher.loaded_size() - self.fetched.elsewhere

    def begin_sampling(self, sampling: str, kept: Collection[str] = ()) -> None:
        """Forgets the last sampling if this is another, but for these networks, which stay on the device. Removes what
        its functions left on the model. sampling: its name; empty for none."""
        if sampling != self.decoder.sampling:
            self.parallel.forget()
            self.leftovers.end()
            self.networks.clear()
            self.decoder.begin_sampling(sampling, kept)

    def hide(self) -> None:
        """Ends the sampling, and hides the model from ComfyUI's memory management until it is loaded again. To make
        room for another model, that would move its weights to RAM, on this rank alone."""
        import comfy.model_management

        self.begin_sampling("")
        loaded = comfy.model_management.current_loaded_models
        loaded[:] = [each for each in loaded if each.model is not self.patcher]

    def take_objects(self, options: dict[str, Any]) -> None:
        """Adds the functions and objects in a call's options to those of the sampling. Raises RequestError."""
        kept, changes = options.pop(GRAPH)
        self.begin_sampling(options.get(SAMPLING, ""), kept)
        self.leftovers.begin(self.parallel.model)
        try:
            self.decoder.apply(changes)
        except ModelFileError:
            raise
        except Exception as error:  # importing a node pack's module may raise anything
            raise RequestError(f"The ranks cannot load a node's code: {type(error).__name__}: {error}") from error

    def replan(self, mesh: Mesh) -> None:
        """Applies another plan to the present weights. Runs no collectives. Raises PlanError."""
        self.leftovers.pause()
        self.kernels.clear()
        self.networks.clear()
        self.parallel.replan(mesh)

    def choose_kernel(self, name: str) -> HostKernel:
        """Returns the attention kernel that a node asks for. Raises RequestError if this rank cannot use it."""
        spec = self.parallel.spec
        head_dim = attention_sizes_of(self.parallel.model, spec).head_dim if spec and spec.attends else 0
        return choose_kernel(name, self.mesh.plan, self.mesh.device, self.parallel.dtype, head_dim)

    def kernel_of(self, name: str) -> HostKernel | None:
        """Returns the kernel that a node chose; None if it chose none, or the ranks cannot use it."""
        found = self.kernels.get(name)
        return found if isinstance(found, HostKernel) else None

    def describe_kernel(self) -> str:
        """Returns the kernel of the plan, in words."""
        from comfy.ldm.modules.attention import optimized_attention

        if self.parallel.attention:
            return f"the plan's kernel {self.parallel.attention.backend.name}"
        return f"ComfyUI's {optimized_attention.__name__}"

    def load_onto_device(self, working_bytes: int = 0, whole: bool = False) -> None:
        """Lets ComfyUI put the weights on the device, with those of networks that nodes added. Runs no collectives.

        ComfyUI puts all of them there if the class's blocks are known. Otherwise its flags and the free memory decide:
        it may leave `working_bytes` free, and bring the rest layer by layer.
        whole: all of them are there.
        """
        import comfy.model_management

        whole = whole or bool(self.fetched.blocks)
        patchers = [self.patcher, *self.decoder.networks]
        comfy.model_management.load_models_gpu(patchers, memory_required=working_bytes, force_full_load=whole)
        self.working_bytes = working_bytes
        self.fetched.rebind()  # ComfyUI replaces the parameters of quantised weights

    def estimate_working(self, *latents: Sequence[int], axis: Axis | None = None) -> int:
        """Returns the bytes that a forward needs in addition to the weights, for latents of these shapes (B, C, …).

        It is ComfyUI's estimate for the largest share of rows and tokens, so it is equal on all ranks.
        axis: shares the rows; the plan's by default.
        """
        axis = axis or self.mesh["batch"]
        shapes = [[max(axis.sizes(rows)), *sizes] for rows, *sizes in latents]
        return math.ceil(sum(map(self.patcher.memory_required, shapes)) * token_factor(self.mesh.plan))

    def estimate_working_of_calls(self, calls: Sequence[Call]) -> int:
        """Returns the bytes that the largest call needs, plus those that PipeFusion keeps for all calls."""
        parts = share_out([call.size for call in calls], self.mesh["batch"])
        shapes = [[each.shape for each in call.latents] for call in calls]
        most = max(self.estimate_working(*shapes[part.call], axis=part.rows) for part in parts)
        return most + self.parallel.stale_bytes([first for first, *_ in shapes])

    def limit_weights(self, free: int) -> int:
        """Returns how much of `free` device memory weights may take, as ComfyUI's flags say."""
        import comfy.model_management as management

        if management.vram_state in (management.VRAMState.HIGH_VRAM, management.VRAMState.SHARED):
            return sys.maxsize
        if management.vram_state == management.VRAMState.NO_VRAM:
            return 0
        left = max(management.minimum_inference_memory() - self.working_bytes, management.extra_reserved_memory())
        return free - int(left)

    def patch(
        self, patches: Mapping[str, Sequence[Sequence]], tensors: Tensors, files: Sequence[MergedFile] = ()
    ) -> None:
        """Applies these changes to the file's weights, in place of the earlier changes. It runs outside of inference
        mode, in which quantised weights cannot be changed. Runs no collectives.

        patches: see `pack_patches`. files: of other models, for a merge. They stay mapped only if weights change
        whenever a layer runs. Raises ModelFileError before it changes anything.
        """
        for file in files:
            file.map()
        whole = not self.patcher.model.model_lowvram
        self.patcher.unpatch_model(None if whole else CPU)
        self.on_use = set_patches(self.patcher, patches, tensors, files, self.mesh.device)
        self.fetched.park_with(self.parking, self.on_use)
        self.patch_directly()
        offload_patched(self.patcher, {name: held for name, held in self.in_file.items() if self.is_as_stored(name)})
        self.load_onto_device(self.working_bytes, whole)
        if not (self.on_use or self.patcher.model.model_lowvram):
            for file in files:
                file.unmap()
        logging.info("%d weights have changes", len(patches))

    def patch_directly(self) -> None:
        """Changes, one by one, the weights that ComfyUI's patcher lacks the memory to change and restore.

        These are fetched weights. If the model is entirely on the device, they are also the weights in another dtype
        than the file's, because the patcher would keep a copy of each in RAM. Weights without changes are restored.
        """
        import comfy.utils

        fetched, wanted = self.fetched_names(), self.patcher.patches
        cast = {f"{PREFIX}{name}" for name in self.dtypes} if self.fetched.blocks else set()
        others = wanted.keys() & (fetched.keys() | cast)
        again = self.rewritten | others
        in_file = self.in_file
        if not again <= in_file.keys():  # some were dequantised as they were loaded
            in_file = dict(map_model(self.source)[0].named_parameters())
        for name in sorted(again):
            stored = in_file[name]
            original = stored if self.is_as_stored(name) else stored.to(self.dtypes[name.removeprefix(PREFIX)])
            value = patch_weight(self.patcher, name, original, self.mesh.device) if name in others else original
            if name in fetched:
                self.fetched.rewrite(*fetched[name], value)
            else:
                value = value if self.is_as_stored(name) else value.to(self.mesh.device)
                comfy.utils.set_attr_param(self.patcher.model, name, value)
            del value  # it is on the device
        self.rewritten = others
        self.patcher.patches = {name: changes for name, changes in wanted.items() if name not in others}

    def is_as_stored(self, name: str) -> bool:
        """Whether the model computes with this weight in the file's dtype."""
        return name.removeprefix(PREFIX) not in self.dtypes

    def refuses_alike(self, sizes: Sequence[int]) -> bool:
        """Whether all ranks refuse an impossible request at the same place, for calls with batches of these sizes.

        They do if there is only one call, every rank runs rows of it, and there are no stages. Otherwise a rank may
        wait for another that has refused.
        """
        return len(sizes) == 1 and all(self.mesh["batch"].sizes(sizes[0])) and self.parallel.link is None

    def call(self, calls: Sequence[Call], method: str = FORWARD) -> list[Output] | None:
        """Returns the model's predictions on global rank 0, one per call; None elsewhere. Tensors may be on any device.
        method: at which the calls enter."""
        found, context = self.prepare(calls)
        with self.apply_context(context), enter_at(self.parallel.model, method):
            return self.parallel.run_calls(found, context.steps)

    def prepare(self, calls: Sequence[Asked]) -> tuple[list[Asked], CallContext]:
        """Returns calls, or the forwards of a sampler's step, as the model takes them, and their context."""
        given = [self.prepare_kwargs(each.kwargs) for each in calls]
        found = [each._replace(kwargs=kwargs) for each, (kwargs, _) in zip(calls, given, strict=True)]
        return found, context_of(given)

    @torch.inference_mode()
    def call_method(self, method: str, calls: Sequence[Call]) -> list[Output] | None:
        """Runs a method other than the forward on global rank 0, which has all of the weights. Returns its result
        there, and None elsewhere. Raises RequestError if the model has no such method."""
        model: Any = self.parallel.model
        if method not in SENT_METHODS or not hasattr(model, method):
            raise RequestError(f"{type(model).__name__} has no method {method!r} for the ranks to run.")
        if dist.get_rank():
            return None
        moved_calls = [moved(tuple(call), self.mesh.device) for call in calls]
        return [getattr(model, method)(*args, **kwargs) for args, kwargs in moved_calls]

    @contextmanager
    def apply_context(self, context: CallContext) -> Iterator[None]:
        """While entered, the model has the context's changes, attention kernel and compile settings."""
        options = context.options
        if self.decoder.entries:
            self.leftovers.begin(self.parallel.model)
            self.networks.share_inside(self.decoder.networks)
            options = options._replace(code=max(options.code, NodeCode.INSIDE))
        with apply_changes(self.parallel.model, context.changes), self.parallel.running_with(options):
            yield

    def prepare_kwargs(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], CallContext]:
        """Returns a call's arguments on this rank's device, with its functions decoded, and the context of the call.

        Raises RequestError.
        """
        kwargs = moved(kwargs, self.mesh.device)
        if OPTIONS not in kwargs:
            return kwargs, CallContext()
        given: dict[str, Any] = parse_field(dict, kwargs[OPTIONS], "options")
        self.begin_sampling(given.get(SAMPLING, ""))
        options, context = parse_field(partial(decode_options, self.decoder), given, "options")
        if kernel := self.kernel_of(str(options.pop(KERNEL, ""))):
            compiles = bool(self.parallel.compile_settings(context.options.compile, context.steps))
            options |= kernel.options_for(self.parallel, compiles)
            if compiles:  # other calls get it by this option
                context = context._replace(options=context.options._replace(kernel=kernel.backend))
        if CONTROL in kwargs:
            control = parse_field(partial(decode_control, self.decoder), kwargs[CONTROL], CONTROL)
            kwargs = {**kwargs, CONTROL: control}
        return {**kwargs, OPTIONS: options}, context
