"""A model of ComfyUI's own in a rank: loaded from its file, on the mesh, with what nodes add to its weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from parallel_backend.errors import ModelFileError, RequestError
from parallel_backend.groups.calls import Call, Output, share_out
from parallel_backend.groups.mesh import Mesh
from parallel_backend.module import ParallelModule, moved
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.denoiser import Pass
from parallel_backend.weights.loading import Check, go_on
from parallel_backend.weights.parking import Parking
from parallel_backend.weights.sizes import WeightSizes

from ..comfyui.functions import Maker
from ..comfyui.model import build, detect, dtype_of, import_comfyui, load_weights
from ..comfyui.patched_options import Inside, attributes_of, with_functions
from ..comfyui.patches import Patch, put_on, send_away
from ..comfyui.source import PARTS, HostSource
from ..wire.tensors import Tensors
from .request_checks import made

CPU = torch.device("cpu")
OPTIONS = "transformer_options"


@dataclass
class HostModel:
    """patcher: ComfyUI's own, which changes the weights and puts them back. module: the model on the mesh. in_file: by
    name, the weights that are as the file has them, in its pages."""

    patcher: Any
    module: ParallelModule
    parking: Parking
    maker: Maker
    in_file: Mapping[str, torch.Tensor]
    adapted: bool = False  # whether the weights are other than the file's
    working_bytes: int = 0  # what the device has room for beside the weights, as ComfyUI estimates it

    @classmethod
    def load(cls, source: HostSource, mesh: Mesh, check: Check = go_on) -> HostModel:
        """Reads the file, whose pages the ranks of a machine share. Runs no collectives.

        Raises ModelFileError, PlanError, or what `check` does, which is asked between the steps.
        """
        import_comfyui(source)
        import comfy.model_patcher

        config, weights, beside = detect(source.file)
        if config is None:
            raise ModelFileError(f"ComfyUI does not know what model {source.file} holds.", "Download it again.")
        check()
        dtype, cast = dtype_of(source.dtype), dtype_of(source.cast)
        model = build(config, weights, beside, dtype, cast, None)
        pages = {weight.data_ptr() for weight in weights.values()}
        if missing := load_weights(model, weights):
            raise ModelFileError(
                f"{len(missing)} weights of {source.model_class} are not in {source.file}, the first is {missing[0]}; "
                "the file is incomplete or of another model."
            )
        check()
        module = ParallelModule(model.diffusion_model, mesh, cast or dtype or torch.bfloat16)
        patcher = comfy.model_patcher.ModelPatcher(model, load_device=mesh.device, offload_device=CPU)
        # After a stage has let go of the blocks of others.
        in_file = {name: weight for name, weight in model.named_parameters() if weight.data_ptr() in pages}
        found = cls(patcher, module, Parking(model.diffusion_model, mesh.device), Maker(source.comfyui), in_file)
        found.place()
        return found

    @property
    def mesh(self) -> Mesh:
        return self.module.mesh

    @property
    def sizes(self) -> WeightSizes:
        """Of all the model's weights."""
        return self.module.sizes

    @property
    def weight_bytes(self) -> int:
        """Of all weights that this rank computes with."""
        return self.patcher.model_size()

    @property
    def resident_bytes(self) -> int:
        """Of those that are on its device; the others wait in RAM and are brought there layer by layer."""
        return 0 if self.parking.is_parked else self.patcher.loaded_size()

    def check_plan(self, plan: ParallelPlan) -> None:
        """Raises PlanError if the model does not allow the plan."""
        self.module.check_plan(plan)

    def token_count(self, latents: Sequence[int]) -> int:
        """Of latents of this shape, (B, C, …); 0 where that is not known."""
        return self.module.token_count(latents)

    def forget(self) -> None:
        """Drops what is remembered of the last run."""
        self.maker.begin("")

    def replan(self, mesh: Mesh) -> None:
        """Puts another plan on the weights that are there. Runs no collectives. Raises PlanError."""
        self.module.replan(mesh)

    def place(self, working_bytes: int = 0, whole: bool = False) -> None:
        """Has ComfyUI put the weights on the device: all, or where its flags and the free memory say so as many as
        leave `working_bytes`, and the rest is brought there layer by layer. Runs no collectives.

        whole: they are all there.
        """
        import comfy.model_management

        comfy.model_management.load_models_gpu([self.patcher], memory_required=working_bytes, force_full_load=whole)
        self.working_bytes = working_bytes

    def make_room(self, latents: Sequence[torch.Tensor], rows: int) -> None:
        """Before forwards of so many rows of these latents: lets weights go if they need more memory than any before.

        By ComfyUI's estimate, of which a rank has its share of the tokens. Runs no collectives.
        """
        shapes = [[rows, *each.shape[1:]] for each in latents]
        needed = math.ceil(sum(map(self.patcher.memory_required, shapes)) / self.mesh["sequence"].degree)
        if needed > self.working_bytes:
            self.place(needed)

    def patch(self, patches: Sequence[Patch], tensors: Tensors) -> None:
        """Gives the weights these changes in place of those that they had; without any, they are as in the file.

        Outside of inference mode, where quantised weights cannot be changed. Runs no collectives.
        """
        whole = not self.patcher.model.model_lowvram
        self.patcher.unpatch_model(None if whole else CPU)
        self.parking.beside = put_on(self.patcher, patches, tensors, self.mesh.device)
        send_away(self.patcher, self.in_file)
        self.place(self.working_bytes, whole)
        self.adapted = bool(patches)
        logging.info("the weights have changes of %d of them", len({patch.name for patch in patches}))

    def refuses_alike(self, sizes: Sequence[int]) -> bool:
        """Whether all ranks refuse at the same place what cannot be run, of calls with batches of these sizes.

        Each runs rows of the only call, and has no stage before it. Else one may wait for another that has refused.
        """
        return len(sizes) == 1 and sizes[0] >= self.mesh["batch"].degree and self.module.link is None

    def call(self, calls: Sequence[Call]) -> list[Output] | None:
        """The model's predictions on global rank 0, one a call; None elsewhere. Tensors may be anywhere."""
        given = [self.prepared(call.kwargs) for call in calls]
        for part in share_out([call.size for call in calls], self.mesh["batch"].degree):
            call = calls[part.call]
            self.make_room(call.latents, math.ceil(call.size / part.rows.degree))
        with self.being(given[0][1]):  # of a patcher, whose calls these are
            return self.module([call._replace(kwargs=kwargs) for call, (kwargs, _) in zip(calls, given, strict=True)])

    def passes(self, passes: Sequence[Pass], noise: torch.Tensor) -> tuple[list[Pass], Inside]:
        """The forwards of a sampler's step as the module takes them, and what the model is to be meanwhile."""
        groups = self.mesh["dp" if len(passes) > 1 else "batch"].degree
        rows = max(len(each.branches) for each in passes) * len(noise)
        self.make_room([noise], math.ceil(rows / groups))
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

    @contextmanager
    def being(self, inside: Inside) -> Iterator[None]:
        """While entered, the model is what was asked for."""
        with attributes_of(self.module.model, inside.attributes), self.module.compiled(inside.compiled):
            yield

    def prepared(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], Inside]:
        """A call's arguments on this rank's device, with functions in the options in place of what describes them; and
        what the model is to be meanwhile. Raises RequestError."""
        kwargs = moved(kwargs, self.mesh.device)
        if OPTIONS not in kwargs:
            return kwargs, Inside()
        options, inside = made(lambda values: with_functions(values, self.maker), kwargs[OPTIONS], "options")
        return {**kwargs, OPTIONS: options}, inside
