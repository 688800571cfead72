"""A model of ComfyUI's own on a mesh: the call that every rank makes together, with whatever its forward takes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from .axes import BATCH_AXES, EVERY_AXES, STAGE_AXES, TOKEN_AXES, WEIGHT_AXES
from .errors import PlanError, RequestError
from .groups.collectives import collect
from .groups.mesh import Axis, Mesh
from .groups.mesh_layout import shard_sizes
from .hooks import Hooks
from .models.comfyui import HostSpec, host_spec
from .plan import ParallelPlan
from .seams.attention import ParallelAttention
from .seams.backends import choose_backend
from .seams.filled import install_filled_boundary, missing_from
from .seams.forward import Forward, ForwardSlot
from .seams.streams import StreamLayout

BATCH_DIM = 0


class HostSizes(NamedTuple):
    """Of a model's attention: the heads, and the dim of each."""

    heads: int
    head_dim: int


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
        self.hooks.remove()
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
        skipped = self.spec.not_batched if self.spec else ()
        args = tuple(rows_of(value, size, axis) for value in args)
        kwargs = {name: value if name in skipped else rows_of(value, size, axis) for name, value in kwargs.items()}
        forward = Forward(self.slot.every_segment())
        with self.slot.enter(forward):
            output = self.model(*args, **kwargs)
        if forward.segments and not forward.gathered:
            raise RequestError(
                "A node has the model skip its last block, behind which the ranks' tokens come together.",
                "Have it skip others, or use ulysses=1 and ring=1.",
            )
        return output


def sizes_of(model: torch.nn.Module, spec: HostSpec) -> HostSizes:
    """The sizes that bound a plan, read off the model, which may be on the meta device."""
    heads, size = (
        functools.reduce(getattr, path.split("."), model) for path in (spec.heads, spec.width or spec.head_dim)
    )
    return HostSizes(heads, size // heads if spec.width else size)


def check_module(plan: ParallelPlan, model: torch.nn.Module) -> None:
    """Raises PlanError, naming the degree, if the model's class forbids the plan, or this ComfyUI's class is not the
    one that its spec is of."""
    name, spec = type(model).__name__, host_spec(type(model))
    for axis in (*STAGE_AXES, *WEIGHT_AXES):
        degree = getattr(plan, axis)
        if degree > 1:
            raise PlanError(
                f"{axis}={degree} is for the models of diffusers folders, and this file runs as ComfyUI's own {name}.",
                f"Use {axis}=1, and ring={degree} or ulysses={degree} in its place.",
                axis,
            )
    if spec and spec.couples(model) and plan.ways(BATCH_AXES) > 1:
        raise PlanError(
            f"The rows of a batch cannot be computed apart in {name}: {spec.coupled}.",
            "Use cfg=1 and dp=1, and ulysses or ring.",
            *(axis for axis in BATCH_AXES if getattr(plan, axis) > 1),
        )
    shared = [axis for axis in TOKEN_AXES if getattr(plan, axis) > 1]
    if not shared:
        return
    if spec is None:
        raise PlanError(
            f"{shared[0]}={getattr(plan, shared[0])} is not there for {name} yet: how its tokens can be shared is not "
            "known here.",
            f"Use {shared[0]}=1, and cfg or dp in its place.",
            *shared,
        )
    if spec.unshared:
        raise PlanError(
            f"The tokens of {name} cannot be shared: {spec.unshared}.",
            f"Use {shared[0]}=1" + ("." if spec.couples(model) else ", and cfg or dp in its place."),
            *shared,
        )
    if changed := list(missing_from(model, spec)):
        raise PlanError(
            f"This ComfyUI's {name} is not the one that is known here: it has no {', '.join(changed)}.",
            "Use cfg or dp in place of ulysses and ring, or the version of ComfyUI that the README names.",
            *shared,
        )
    plan.check_model(heads=sizes_of(model, spec).heads)


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
