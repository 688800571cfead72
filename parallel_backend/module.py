"""A model of ComfyUI's own on a mesh: the call that every rank makes together, with whatever its forward takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from .axes import EVERY_AXES
from .errors import PlanError, RequestError
from .groups.calls import Call, Output, collect_calls, share_out
from .groups.collectives import gather
from .groups.mesh import Axis, Mesh
from .groups.mesh_layout import stages_of
from .hooks import Hooks
from .models.comfyui import host_spec
from .models.comfyui.checks import check_module, modules_at, patch_of, sizes_of
from .models.comfyui.spec import ALWAYS_WHOLE
from .plan import ParallelPlan
from .seams.attention import ParallelAttention
from .seams.backends import choose_backend
from .seams.compiled import CompiledBlocks
from .seams.filled.boundary import install_filled_boundary
from .seams.filled.stages import StageEnds
from .seams.filled.streams import StreamLayout
from .seams.forward import Forward, ForwardSlot
from .seams.stages import StageExit, StageLink, StandIn, keep_stage
from .weights.prefetcher import BlockPrefetcher, blocks_at
from .weights.sizes import sizes_of_host

BATCH_DIM, CHANNEL_DIM = 0, 1


class ModuleConditions(NamedTuple):
    """What a module gets beside latents and timesteps: the rest of its arguments, and channels that are no part of what
    is sampled, which follow the latents' own."""

    kwargs: dict[str, Any]
    channels: torch.Tensor | None = None


class ParallelModule:
    """Applies a plan to an unmodified module, from outside.

    The batch is shared over dp and cfg, tokens over ulysses and ring, blocks over pipefusion, as the spec of its class
    says; a class without one has its batch shared alone. Raises PlanError where the plan asks for more than that.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        mesh: Mesh,
        dtype: torch.dtype,
        dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        """dtype: what the model computes in. dtypes: by name, of parameters whose values are of another yet."""
        self.model = model
        self.dtype = dtype
        self.dtypes = dtypes or {}
        self.hooks = Hooks()
        self.spec = host_spec(type(model))
        self.sizes = sizes_of_host(model, dtypes)
        lists = self.spec.in_turn if self.spec else ()
        shared = [path for blocks in self.spec.blocks for path in blocks.shared] if self.spec else []
        self._install(mesh)
        own = {path: block for path, block in blocks_at(model, lists).items() if not isinstance(block, StandIn)}
        self.fetched = BlockPrefetcher(model, own, mesh.device, shared, dtypes, mesh.timeline)
        every = [block for blocks in self.spec.blocks for block in modules_at(model, blocks.path)] if self.spec else []
        self.compiled = CompiledBlocks(
            [each for each in every if not isinstance(each, StandIn)] or [model], mesh.device
        )

    def _install(self, mesh: Mesh) -> None:
        """Raises PlanError; nothing is on the model then."""
        plan, spec, model = mesh.plan, self.spec, self.model
        self.check_plan(plan)
        self.mesh = mesh
        self.slot = ForwardSlot(plan.patch_count)
        self.link: StageLink | None = None
        if mesh["sequence"].degree * plan.pipefusion * plan.patch_count == 1 or spec is None:
            return
        sizes = sizes_of(model, spec)
        backend = choose_backend(plan.attention, mesh.device, self.dtype, sizes.head_dim, plan.ring)
        layout = StreamLayout(spec.patches[0] if spec.patches else "", mesh["sequence"], self.slot)
        ends = None
        if plan.pipefusion > 1:
            rows = [blocks.row() for blocks in spec.blocks]
            own = stages_of(plan, self.sizes.blocks)[mesh["pipefusion"].index]
            stage = keep_stage(model, rows, own, self.hooks, spec.skips)
            self.link = StageLink(mesh, self.slot)
            ends = StageEnds(layout, stage, self.link)
        attention = ParallelAttention(mesh, layout, backend)
        install_filled_boundary(model, spec, layout, attention, self.hooks, ends, sizes.heads * sizes.head_dim)

    def replan(self, mesh: Mesh) -> None:
        """Puts another plan on the weights that are there, for which the stages stay. Runs no collectives. Raises
        PlanError; nothing has changed then."""
        before = self.mesh
        self.remove()
        try:
            self._install(mesh)
        except PlanError:
            self._install(before)
            raise
        finally:
            self.fetched.install()

    def remove(self) -> None:
        """Takes all of it off the model, which then is as it was before."""
        self.hooks.remove()

    def compiling(self, steps: int) -> AbstractContextManager[None]:
        """While entered, the blocks run as they are to in a sampling of so many steps: compiled, or as they are. Of a
        class without a spec, the whole model does."""
        return self.compiled.running(self.compiled.settings_for(self.mesh.plan, steps))

    def check_plan(self, plan: ParallelPlan) -> None:
        """Raises PlanError if the model's class does not allow the plan."""
        check_module(plan, self.model)

    def token_count(self, latents: Sequence[int]) -> int:
        """Of latents of this shape, (B, C, …); 0 where the class has no spec."""
        if self.spec is None:
            return 0
        sides = patch_of(self.model, self.spec, len(latents) - 2)
        return latents[0] * math.prod(-(-size // side) for size, side in zip(latents[2:], sides, strict=True))

    def __call__(self, calls: Sequence[Call], steps: int = 1) -> list[Output] | None:
        """What the model's forward returns for each call, a tensor or several, on global rank 0; None elsewhere.

        Every rank calls it with the same values, whose tensors may be anywhere. steps: of their sampling. Raises
        RequestError.
        """
        self.mesh.plan.check_one_forward()
        if len({tuple(each.ndim for each in call.latents) for call in calls}) != 1:
            raise RequestError("The calls of one request have latents of as many dims.", "Restart ComfyUI.")
        axis, sizes = self.mesh["batch"], [call.size for call in calls]
        parts = share_out(sizes, axis)
        with torch.inference_mode(), self.mesh.timeline.step("forward"), self.compiling(steps):
            outputs = []
            for call, _, rows in (part for part in parts if part.group == axis.index):
                args, kwargs = moved(tuple(calls[call]), self.mesh.device)
                outputs.append(self.forward(args, kwargs, sizes[call], rows, Forward(self.slot.every_segment())))
            for _ in range(max(Counter(part.group for part in parts).values()) - len(outputs)):
                self.fetched.serve()
            if any(self.mesh[name].index for name in EVERY_AXES):
                return None  # another rank has the same and sends it
            return collect_calls(outputs, parts, sizes, axis, self.mesh.device)

    def predict(
        self,
        latents: torch.Tensor,
        timestep_B: torch.Tensor,
        conditions: ModuleConditions,
        axis: Axis,
        forward: Forward,
    ) -> torch.Tensor | None:
        """The whole batch's prediction for latents (B, C, H, W) or (B, C, F, H, W), on every rank of the last stage;
        None on others. See ParallelTransformer.predict."""
        device, size = self.mesh.device, len(latents)
        grid = [length // side for length, side in zip(latents.shape[2:], self.patch(latents), strict=True)]
        forward.image_tokens = math.prod(grid)
        given = latents.to(device, self.dtype)
        if conditions.channels is not None:
            given = torch.cat([given, conditions.channels.to(given)], CHANNEL_DIM)
        local = self.forward((given, timestep_B.to(device)), conditions.kwargs, size, axis, forward)
        if local is None:
            if self.link and not self.link.is_last:
                return None
            local = given[:0, : latents.shape[1]]
        return gather(local, BATCH_DIM, size, axis)

    def patch(self, latents: torch.Tensor) -> tuple[int, ...]:
        """What of these latents becomes a token, over their last dims; ones where that is not known."""
        dims = latents.ndim - 2
        return patch_of(self.model, self.spec, dims) if self.spec else (1,) * dims

    def check(self, latents: torch.Tensor, _timestep_B: torch.Tensor, _conditions: ModuleConditions) -> None:
        """Raises RequestError, on every rank alike, for latents that do not fall into PipeFusion's patches."""
        patch = self.patch(latents)
        if self.mesh.plan.patch_count > 1 and any(
            size % side for size, side in zip(latents.shape[2:], patch, strict=True)
        ):
            shape, sides = ("×".join(map(str, sizes)) for sizes in (latents.shape[2:], patch))
            raise RequestError(
                f"The latent measures {shape}, and the model works on patches of {sides}.",
                "Use sizes that are multiples of these, in latent pixels, or a stock KSampler.",
            )

    def forget(self) -> None:
        """Drops what is remembered of the last request: nothing is."""

    def forward(self, args: tuple, kwargs: dict[str, Any], size: int, axis: Axis, forward: Forward) -> Any:
        """This rank's rows of the batch through the model; None where it has none, or they went to the next stage."""
        if not axis.own_size(size):
            self.fetched.serve(forward.absent)
            return None
        args = tuple(rows_of(value, size, axis) for value in args)
        kwargs = {name: value if name == ALWAYS_WHOLE else rows_of(value, size, axis) for name, value in kwargs.items()}
        try:
            with self.slot.enter(forward), self.fetched.forward(StageExit):
                output = self.model(*args, **kwargs)
        except StageExit:
            return None
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
    return value[axis.own(size)]


def moved(value: Any, device: torch.device) -> Any:
    """A value with all of its tensors on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(moved(item, device) for item in value)
    if isinstance(value, dict):
        return {name: moved(item, device) for name, item in value.items()}
    return value
