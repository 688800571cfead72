"""A diffusers transformer on a mesh, with weights from a module or from files."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from .errors import RequestError
from .groups.mesh import Mesh
from .models import known_spec
from .parallel_model import ParallelModel
from .plan import ParallelPlan
from .weights.flat_block import FlatBlock, Values
from .weights.loading import Check, ModelSource, build_transformer, go_on, load_weights, read_tensors
from .weights.stores import Store
from .weights.tensors import count_bytes

if TYPE_CHECKING:
    from diffusers import ModelMixin

SPARE = 400 << 20  # bytes of a device, kept free of weights and of a forward's tensors


class DiffusersModel(ParallelModel):
    """A parallel model of one of diffusers' classes.

    Raises PlanError if the model does not allow the plan, and UnknownModelError if its class has no spec.
    """

    model: ModelMixin
    placed: ParallelPlan | None = None  # this and what follows: see `PlacedModel`
    placed_for: tuple[str, int] = ("", 0)
    bringing = working_bytes = 0

    def __init__(self, model: ModelMixin, mesh: Mesh) -> None:
        self.known = known_spec(type(model).__name__)
        self.unread: ModelSource | None = None  # the source of weights that are not read yet
        self.has_one_stage = False  # whether the blocks of other stages have no weights
        super().__init__(model, mesh, model.dtype)

    @property
    def resident_bytes(self) -> int:
        """The bytes of the weights that this rank has on its device."""
        return 0 if self.unread else count_bytes(self.model) - self.fetched.elsewhere

    def limit_weights(self, free: int) -> int:
        """Returns how much of this free device memory the weights may use."""
        return free - SPARE

    def remove(self) -> None:
        """Restores the model as it was. This object cannot be used afterwards. Additions to the weights stay in them.

        Raises RequestError, and changes nothing, if the weights of other stages were never read.
        """
        if self.has_one_stage:
            raise RequestError(
                "This rank read its own pipeline stage alone, so that the other blocks have no weights to put back.",
                "Load the whole model from its files.",
            )
        self.fetched.rearrange((), None)
        self.forget()
        super().remove()

    @classmethod
    def build(cls, source: ModelSource, mesh: Mesh) -> DiffusersModel:
        """Builds this rank's part of the model. `bring` reads its weights. Also raises ModelFileError."""
        model = cls(build_transformer(source), mesh)
        model.unread, model.has_one_stage = source, mesh.plan.pipefusion > 1
        return model

    def bring(self, numbers: Collection[int], store: Store | None, check: Check = go_on) -> None:
        """Keeps the weights of these blocks of this rank in a store and all others on the device.

        Reads this rank's weights if they are not read yet, and runs no collectives then. Raises ModelFileError. The
        model cannot be used after that. check: not called, because nobody cancels a script.
        """
        unread, self.unread = self.unread, None
        self.fetched.rearrange(numbers, store, partial(self.stored_values, unread) if unread else None)
        if unread:
            names = [name for name, _, _ in self.fetched.names()]
            load_weights(self.model, unread, self.mesh.device, names)

    def stored_values(self, source: ModelSource, row: FlatBlock) -> Values:
        """Returns a block's parameters from the files. A page is read from disk on first access."""
        shapes = {f"{row.path}.{name}": row.block.get_parameter(name).shape for name in row.names}
        tensors = read_tensors(source, shapes)
        return lambda name: tensors[f"{row.path}.{name}"]
