"""A transformer of diffusers on a mesh: read from its files, called with latents and conditions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from .costs.memory import device_bytes, rank_bytes
from .errors import RequestError
from .groups.collectives import collect, shard
from .groups.mesh import Axis, Mesh
from .groups.mesh_layout import same_weights
from .memo import Memo, memoise
from .models import adapter_for
from .models.checks import sizes_of
from .models.input_checks import check_inputs
from .parallel_model import BATCH_DIM, ParallelModel
from .seams.forward import Forward
from .weights.adapters import Addition, write_weights
from .weights.flat_block import FlatBlock, Values
from .weights.loading import Check, ModelSource, build_transformer, go_on, load_weights, read_tensors
from .weights.parking import Parking
from .weights.stores import Store
from .weights.tensors import held_bytes

if TYPE_CHECKING:
    from diffusers import ModelMixin

SPARE = 400 << 20  # bytes of a device, for what is neither weights nor a forward's
MAX_CONDITIONS = 64  # how many conditions a rank keeps its own rows of

Conditions = dict[str, torch.Tensor]


class DiffusersModel(ParallelModel):
    """A parallel model that takes conditions, and gives a prediction in the shape of the latents, as its adapter says.

    Raises PlanError if the model does not allow the plan, and UnknownModelError if its class has no adapter.
    """

    model: ModelMixin

    def __init__(self, model: ModelMixin, mesh: Mesh, remembers: bool = True) -> None:
        """remembers: whether work on the conditions alone is done once; only where nobody else writes to them."""
        self.adapter = adapter_for(type(model).__name__)
        self.remembers = remembers
        self.memos: list[Memo] = []
        self.parking = Parking(model, mesh.device)
        self.source: ModelSource | None = None
        self.unread: ModelSource | None = None  # where the weights are to be read from
        self.adapted: set[str] = set()
        self.working_bytes = 0  # what the device has room for beside the weights
        self.local_conditions: deque[tuple[torch.Tensor, Axis, torch.Tensor]] = deque(maxlen=MAX_CONDITIONS)
        super().__init__(model, mesh, model.dtype)
        self.whole_bytes = held_bytes(model)  # other threads read this, and do not look into the model

    def install(self, mesh: Mesh) -> None:
        super().install(mesh)
        self.memos = memoise(self.model, self.adapter.memoised, self.hooks) if self.remembers else []
        if self.adapter.prepare:
            self.adapter.prepare(self.model, self.hooks)  # last, so that its hooks see all tokens

    @property
    def weight_bytes(self) -> int:
        """Of the weights that this rank keeps on its device."""
        return self.whole_bytes - self.fetched.elsewhere

    @property
    def resident_bytes(self) -> int:
        """Of those that are there now."""
        return 0 if self.parking.is_parked else self.weight_bytes

    def working(self, latents: Sequence[int]) -> int:
        """The bytes that a forward takes beside the weights, for latents of this shape, (B, C, …), on the rank that has
        the most of it; alike on all."""
        heads, head_dim, _ = sizes_of(self.model, self.adapter.spec)
        activation = self.token_count(latents) * heads * head_dim * self.dtype.itemsize
        return math.ceil(rank_bytes(device_bytes(activation), latents[0], self.mesh.plan))

    def limit_weights(self, free: int) -> int:
        """What weights may have of so much memory of the device."""
        return free - SPARE

    def replan(self, mesh: Mesh) -> None:
        """Puts another plan on the weights that are there, parked ones too. Raises ValueError for a plan that would
        leave a rank other weights, see `same_weights`; and as ParallelModel.replan does."""
        if not same_weights(self.mesh.plan, mesh.plan):
            raise ValueError(f"{mesh.plan} shares out the weights in another way than {self.mesh.plan}.")
        super().replan(mesh)

    def remove(self) -> None:
        """Takes all of it off the model, which then is as it was before; this object is of no use then. Additions to
        the weights stay in them. Raises RequestError where other stages' weights were never read; nothing has changed
        then.
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
        """Builds the model, cuts it to this rank's part, and reads that part's weights. Runs no collectives.

        Raises ModelFileError too, and what `check` does.
        """
        model = cls.build(source, mesh)
        model.bring((), None, check)
        return model

    @classmethod
    def build(cls, source: ModelSource, mesh: Mesh) -> DiffusersModel:
        """The model cut to this rank's part, without weights, which `bring` reads. Raises ModelFileError too."""
        model = cls(build_transformer(source), mesh)
        model.source = model.unread = source
        return model

    def bring(self, places: Collection[int], store: Store | None, check: Check = go_on) -> None:
        """Has the weights of these of this rank's blocks fetched from a store, and all others on the device.

        Weights that are not there yet are read, this rank's part of them; runs no collectives then. Raises
        ModelFileError, or what `check` does; the model is of no use then.
        """
        unread, self.unread = self.unread, None
        self.fetched.rearrange(places, store, partial(self.stored_values, unread, check) if unread else None)
        if unread:
            names = [name for name, _, _ in self.fetched.names()]
            load_weights(self.model, unread, self.mesh.device, check, names)
        self.fetched.park_with(self.parking)

    def stored_values(self, source: ModelSource, check: Check, row: FlatBlock) -> Values:
        """A block's parameters as the files have them, whose pages are read once somebody looks."""
        shapes = {f"{row.path}.{name}": row.block.get_parameter(name).shape for name in row.names}
        tensors = read_tensors(source, shapes, check)
        return lambda name: tensors[f"{row.path}.{name}"]

    def adapt(self, additions: list[Addition], tensors: dict[str, torch.Tensor], check: Check = go_on) -> None:
        """Gives the weights these additions in place of those that they had; without any, they are as in the files.

        Only for a model that was loaded. Runs no collectives. Raises ModelFileError, or what `check` does, and then
        some have been changed.
        """
        if self.source is None:
            raise ValueError("Additions need a model that was loaded from files, to read the weights again.")
        self.forget()
        wanted = {addition.parameter for addition in additions}
        names = self.adapted | wanted
        fetched = {name: (place, own) for name, place, own in self.fetched.names()}

        def put(name: str, value: torch.Tensor) -> None:
            if where := fetched.get(name):
                self.fetched.rewrite(*where, value)
            else:
                self.model.state_dict()[name].copy_(value)

        write_weights(self.model, self.source, names, additions, tensors, put, check)
        self.adapted = wanted

    def __call__(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Conditions, steps: int = 1
    ) -> torch.Tensor | None:
        """The model's prediction for a batch, in the shape of `latents`, on global rank 0; None elsewhere.

        latents: (B, C, H, W), or (B, C, F, H, W) for video. timestep_B: in the model's own units. conditions: the
        adapter's, each batch first. steps: of its sampling. Raises RequestError, on every rank alike, for input that
        the model cannot take.
        """
        self.mesh.plan.check_one_forward()
        self.check(latents, timestep_B, conditions)
        axis = self.mesh["batch"]
        with torch.inference_mode(), self.mesh.timeline.step("forward"), self.compiling(steps):
            forward = Forward(self.slot.every_segment())
            local = self.predict_rows(latents, timestep_B, conditions, axis, forward)
            if not self.has_result:
                return None
            return collect(self.no_rows(latents) if local is None else local, BATCH_DIM, len(latents), axis)

    def predict_rows(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Conditions, axis: Axis, forward: Forward
    ) -> torch.Tensor | None:
        """The prediction for this rank's rows of the batch; None if it has none, or they went to the next stage."""
        if not axis.own_size(len(latents)):
            self.fetched.serve(forward.absent)
            return None
        device, config = self.mesh.device, self.model.config
        rows = shard(latents, BATCH_DIM, axis).to(device, self.dtype)
        own = {name: self.local_condition(name, value, axis) for name, value in conditions.items()}
        inputs = self.adapter.inputs(config, rows, shard(timestep_B, BATCH_DIM, axis).to(device), own)
        output = self.run((), {**inputs, "return_dict": False}, forward)
        return None if output is None else self.adapter.output(config, output[0], rows)

    def patch_sides(self, dims: int) -> tuple[int, ...]:
        """What of the latents becomes a token, over their last dims."""
        return self.adapter.geometry(self.model.config)[1]

    def local_condition(self, name: str, whole: torch.Tensor, axis: Axis) -> torch.Tensor:
        """This rank's rows of a condition, on its device; the same tensor as long as the whole one is the same."""
        known = (local for condition, over, local in self.local_conditions if condition is whole and over is axis)
        if (local := next(known, None)) is None:
            dtype = self.dtype if whole.is_floating_point() and name not in self.adapter.exact else None
            local = shard(whole, BATCH_DIM, axis).to(self.mesh.device, dtype)
            self.local_conditions.append((whole, axis, local))
        return local

    def forget(self) -> None:
        """Drops what is remembered of the last request's conditions."""
        self.local_conditions.clear()
        for memo in self.memos:
            memo.forget()

    def check(self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Conditions) -> None:
        """Raises RequestError for what the model cannot take; depends on the request alone, so all ranks agree."""
        patches = self.mesh.plan.patch_count
        check_inputs(self.adapter, self.model.config, latents, timestep_B, conditions, patches)
