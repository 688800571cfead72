"""A diffusers transformer on a mesh. It is loaded from its files and called with latents and conditions."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

import torch

from .apply_plan import own_blocks
from .errors import RequestError
from .groups.calls import Call, kind_of, tensors_of
from .groups.collectives import collect, shard
from .groups.mesh import Axis, Mesh
from .groups.mesh_layout import same_weights
from .models import adapter_for
from .models.input_checks import check_inputs
from .parallel_model import BATCH_DIM, ParallelModel
from .seams.forward import Forward
from .seams.pipeline.stages import without_stand_ins
from .weights.flat_block import FlatBlock, Values
from .weights.loading import Check, ModelSource, build_transformer, go_on, load_weights, read_tensors
from .weights.parking import Parking
from .weights.stores import Store
from .weights.tensors import count_bytes

if TYPE_CHECKING:
    from diffusers import ModelMixin

SPARE = 400 << 20  # bytes of a device, kept free of weights and of a forward's tensors
MAX_CONDITIONS = 64  # a rank keeps its own rows of this many conditions

Conditions = dict[str, torch.Tensor]


class DiffusersModel(ParallelModel):
    """A parallel model that takes conditions. Its prediction has the latents' shape, as its adapter defines.

    Raises PlanError if the model does not allow the plan, and UnknownModelError if its class has no adapter.
    """

    model: ModelMixin

    def __init__(self, model: ModelMixin, mesh: Mesh) -> None:
        self.adapter = adapter_for(type(model).__name__)
        self.parking = Parking(model, mesh.device)
        self.unread: ModelSource | None = None  # the source of weights that are not read yet
        self.working_bytes = 0  # bytes that weights leave free on the device
        self.local_conditions: deque[tuple[torch.Tensor, Axis, torch.Tensor]] = deque(maxlen=MAX_CONDITIONS)
        super().__init__(model, mesh, model.dtype)
        self.whole_bytes = count_bytes(model)  # other threads read this instead of the model

    def install(self, mesh: Mesh) -> None:
        super().install(mesh)
        for path, processor in self.adapter.processors.items():
            for _, block in own_blocks(self.model, self.adapter.spec):
                attention = block.get_submodule(path)
                self.hooks.replace(attention, "processor", processor(attention.processor))
        if self.adapter.prepare:
            with without_stand_ins(self.model, self.adapter.spec.blocks):
                self.adapter.prepare(self.model, self.hooks)  # last, so that its hooks see all tokens

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights that this rank keeps on its device."""
        return self.whole_bytes - self.fetched.elsewhere

    @property
    def resident_bytes(self) -> int:
        """The bytes of those weights that are on the device now."""
        return 0 if self.parking.is_parked else self.weight_bytes

    def limit_weights(self, free: int) -> int:
        """Returns how much of this free device memory the weights may use."""
        return free - SPARE

    def replan(self, mesh: Mesh) -> None:
        """Applies another plan to the same weights, which may be parked.

        Raises ValueError if the plan would give a rank other weights (see `same_weights`). Raises as
        ParallelModel.replan does.
        """
        if not same_weights(self.mesh.plan, mesh.plan):
            raise ValueError(f"{mesh.plan} shares out the weights in another way than {self.mesh.plan}.")
        super().replan(mesh)

    def remove(self) -> None:
        """Restores the model as it was. This object cannot be used afterwards. Additions to the weights stay in them.

        Raises RequestError, and changes nothing, if the weights of other stages were never read.
        """
        if self.stage.missing:
            raise RequestError(
                f"This rank read its own pipeline stage alone, so that {len(self.stage.missing)} blocks, from "
                f"{self.stage.missing[0]} on, have no weights to put back.",
                "Load the whole model from its files.",
            )
        if self.parking.is_parked:
            self.parking.restore()
        self.fetched.rearrange((), None)
        self.forget()
        super().remove()

    @classmethod
    def load(cls, source: ModelSource, mesh: Mesh, check: Check = go_on) -> DiffusersModel:
        """Builds the model, keeps only this rank's part, and reads that part's weights. Runs no collectives.

        Also raises ModelFileError and whatever `check` raises.
        """
        model = cls.build(source, mesh)
        model.bring((), None, check)
        return model

    @classmethod
    def build(cls, source: ModelSource, mesh: Mesh) -> DiffusersModel:
        """Builds this rank's part of the model. `bring` reads its weights. Also raises ModelFileError."""
        model = cls(build_transformer(source), mesh)
        model.unread = source
        return model

    def bring(self, places: Collection[int], store: Store | None, check: Check = go_on) -> None:
        """Keeps the weights of these blocks of this rank in a store and all others on the device.

        Reads this rank's weights if they are not read yet, and runs no collectives then. Raises ModelFileError or
        whatever `check` raises. The model cannot be used after that.
        """
        unread, self.unread = self.unread, None
        self.fetched.rearrange(places, store, partial(self.stored_values, unread, check) if unread else None)
        if unread:
            names = [name for name, _, _ in self.fetched.names()]
            load_weights(self.model, unread, self.mesh.device, check, names)
        self.fetched.park_with(self.parking)

    def stored_values(self, source: ModelSource, check: Check, row: FlatBlock) -> Values:
        """Returns a block's parameters from the files. A page is read from disk on first access."""
        shapes = {f"{row.path}.{name}": row.block.get_parameter(name).shape for name in row.names}
        tensors = read_tensors(source, shapes, check)
        return lambda name: tensors[f"{row.path}.{name}"]

    def __call__(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Conditions, steps: int = 1
    ) -> torch.Tensor | None:
        """Returns the prediction for a batch, in the shape of `latents`, on global rank 0; None elsewhere.

        latents: (B, C, H, W), or (B, C, F, H, W) for video. timestep_B: in the model's own units. conditions: the
        adapter's, each with the batch first. steps: of the whole sampling. Under a plan with PipeFusion, this is the
        sampling's next step. Raises RequestError on every rank alike for input that the model cannot take.
        """
        self.check(latents, timestep_B, conditions)
        axis, calls = self.mesh["batch"], [Call((latents, timestep_B), dict(conditions))]

        def run(_part: int, forward: Forward) -> torch.Tensor | None:
            return self.predict_rows(latents, timestep_B, conditions, axis, forward)

        with torch.inference_mode(), self.mesh.timeline.step("forward"), self.compiling(steps):
            (local,) = self.run_step(self.pipeline.begin(calls, 1, self.count_tokens, self.find_grid), [0], run)
            if not self.has_result:
                return None
            whole = None
            if not self.link or self.link.is_last:
                whole = collect(self.no_rows(latents) if local is None else local, BATCH_DIM, len(latents), axis)
            found = self.return_to_first(None if whole is None else [whole], [kind_of([latents], len(latents))])
            return None if found is None else tensors_of(found[0])[0]

    def predict_rows(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Conditions, axis: Axis, forward: Forward
    ) -> torch.Tensor | None:
        """Returns the prediction for this rank's rows. None if it has no rows, or its tokens went to the next stage."""
        if not axis.own_size(len(latents)):
            self.fetched.serve()
            return None
        device, config = self.mesh.device, self.model.config
        rows = shard(latents, BATCH_DIM, axis).to(device, self.dtype, non_blocking=True)
        own = {name: self.local_condition(name, value, axis) for name, value in conditions.items()}
        times = shard(timestep_B, BATCH_DIM, axis).to(device, non_blocking=True)
        inputs = self.adapter.inputs(config, rows, times, own)
        output = self.run((), {**inputs, "return_dict": False}, forward)
        if output is None:
            return None
        return self.adapter.output(config, output[0] if isinstance(output, tuple) else output, rows)

    def patch_sides(self, dims: int) -> tuple[int, ...]:
        """Returns the sides of the patch of latents that becomes one token, over their last dims."""
        return self.adapter.geometry(self.model.config)[1]

    def local_condition(self, name: str, whole: torch.Tensor, axis: Axis) -> torch.Tensor:
        """Returns this rank's rows of a condition, on its device. The same whole tensor gives the same result."""
        known = (local for condition, over, local in self.local_conditions if condition is whole and over is axis)
        if (local := next(known, None)) is None:
            dtype = self.dtype if whole.is_floating_point() and name not in self.adapter.exact else None
            rows = whole[:1] if name in self.adapter.spec.first_rows else shard(whole, BATCH_DIM, axis)
            local = rows.to(self.mesh.device, dtype)
            self.local_conditions.append((whole, axis, local))
        return local

    def forget(self) -> None:
        """Drops everything cached for the last request's conditions."""
        super().forget()
        self.local_conditions.clear()

    def check(self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Conditions) -> None:
        """Raises RequestError for input that the model cannot take. Only the request decides, so all ranks agree."""
        patches = self.mesh.plan.patch_count
        check_inputs(self.adapter, self.model.config, latents, timestep_B, conditions, patches)
