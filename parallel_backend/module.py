"""A model of ComfyUI's own on a mesh: the call that every rank makes together, with whatever its forward takes."""

from __future__ import annotations

from typing import Any

import torch

from .axes import EVERY_AXES
from .errors import RequestError
from .groups.collectives import collect
from .groups.mesh import Axis, Mesh
from .groups.mesh_layout import shard_sizes
from .hooks import Hooks
from .models.comfyui import host_spec
from .models.comfyui.checks import check_module, sizes_of
from .models.comfyui.spec import ALWAYS_WHOLE
from .seams.attention import ParallelAttention
from .seams.backends import choose_backend
from .seams.filled import install_filled_boundary
from .seams.forward import Forward, ForwardSlot
from .seams.streams import StreamLayout

BATCH_DIM = 0


class ParallelModule:
    """Applies a plan to an unmodified module, from outside.

    The batch is shared over dp and cfg, tokens over ulysses and ring, as the spec of its class says; a class without
    one has its batch shared alone. Raises PlanError where the plan asks for more than that.
    """

    def __init__(self, model: torch.nn.Module, mesh: Mesh, dtype: torch.dtype) -> None:
        """dtype: what the model computes in."""
        self.model = model
        self.dtype = dtype
        self.hooks = Hooks()
        self.spec = host_spec(type(model))
        self._install(mesh)

    def _install(self, mesh: Mesh) -> None:
        check_module(mesh.plan, self.model)
        self.mesh = mesh
        self.slot = ForwardSlot()
        if mesh["sequence"].degree == 1 or self.spec is None:
            return
        layout = StreamLayout(mesh["sequence"], self.slot)
        head_dim = sizes_of(self.model, self.spec).head_dim
        backend = choose_backend(mesh.plan.attention, mesh.device, self.dtype, head_dim, mesh.plan.ring)
        install_filled_boundary(self.model, self.spec, layout, ParallelAttention(mesh, layout, backend), self.hooks)

    def replan(self, mesh: Mesh) -> None:
        """Puts another plan on the weights that are there. Runs no collectives. Raises PlanError; nothing has changed
        then."""
        check_module(mesh.plan, self.model)
        self.remove()
        self._install(mesh)

    def remove(self) -> None:
        """Takes all of it off the model, which then is as it was before."""
        self.hooks.remove()

    @torch.inference_mode()
    def __call__(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What the model's forward returns, a tensor or several, on global rank 0; None elsewhere.

        The first argument has the latents, batch first, or several of them. Every rank calls it with the same values.
        """
        size = len(args[0][0] if isinstance(args[0], (list, tuple)) else args[0])
        axis = self.mesh["batch"]
        with self.mesh.timeline.step("forward"):
            output = self.forward(args, kwargs, size, axis)
            if output is None or any(self.mesh[name].index for name in EVERY_AXES):
                return None  # another rank has the same and sends it, or this one has no rows
            if isinstance(output, torch.Tensor):
                return collect(output, BATCH_DIM, size, axis)
            parts = [collect(part, BATCH_DIM, size, axis) for part in output]
            return None if parts[0] is None else parts

    def forward(self, args: tuple, kwargs: dict[str, Any], size: int, axis: Axis) -> Any:
        """This rank's rows of the batch through the model; None where it has none."""
        if not shard_sizes(size, axis.degree)[axis.index]:
            return None
        args = tuple(rows_of(value, size, axis) for value in args)
        kwargs = {name: value if name == ALWAYS_WHOLE else rows_of(value, size, axis) for name, value in kwargs.items()}
        forward = Forward(self.slot.every_segment())
        with self.slot.enter(forward):
            output = self.model(*args, **kwargs)
        if forward.segments and not forward.gathered:
            raise RequestError(
                "A node has the model skip its last block, behind which the ranks' tokens come together.",
                "Have it skip others, or use ulysses=1 and ring=1.",
            )
        return output


def rows_of(value: Any, size: int, axis: Axis) -> Any:
    """This rank's rows of a value, or of each in a list or a dict, that has as many as the batch."""
    if axis.degree == 1:
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(rows_of(item, size, axis) for item in value)
    if isinstance(value, dict):
        return {name: rows_of(item, size, axis) for name, item in value.items()}
    if not isinstance(value, torch.Tensor) or not value.ndim or len(value) != size:
        return value
    return value.tensor_split(axis.degree, BATCH_DIM)[axis.index]
