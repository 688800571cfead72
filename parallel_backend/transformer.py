"""One diffusers transformer on a mesh: the call that every rank makes together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

import torch

from .axes import EVERY_AXES
from .costs.memory import device_bytes, rank_bytes
from .errors import RequestError
from .groups.collectives import collect, gather, shard
from .groups.mesh import Axis, Mesh
from .groups.mesh_layout import same_weights, stages_of
from .hooks import Hooks
from .memo import memoise
from .models import ModelSpec, spec_for
from .plan import ParallelPlan
from .seams.attention import Attend, ParallelAttention, install_attention
from .seams.backends import NATIVE, Backend, choose_backend
from .seams.beside import Beside
from .seams.boundary import install_token_boundary
from .seams.compiled import CompiledBlocks
from .seams.exchange.heads import with_unrepeated
from .seams.forward import Forward, ForwardSlot
from .seams.layout import TokenLayout
from .seams.stages import StageExit, StageLink, keep_stage
from .weights.adapters import Addition, write_weights
from .weights.flat_block import FlatBlock, Values
from .weights.loading import Check, ModelSource, build_transformer, go_on, load_weights, read_tensors
from .weights.parking import Parking
from .weights.prefetcher import BlockPrefetcher, blocks_at
from .weights.sizes import sizes_of_module
from .weights.stores import Store
from .weights.tensors import held_bytes

if TYPE_CHECKING:
    from diffusers import ModelMixin

BATCH_DIM = 0
SPARE = 400 << 20  # bytes of a device, for what is neither weights nor a forward's
MAX_CONDITIONS = 64  # of which a rank keeps its own rows

Conditions = dict[str, torch.Tensor]


class ParallelTransformer:
    """Applies a plan to an unmodified diffusers transformer, from outside.

    What each axis splits is in `axes.py`; tokens are split between the first and the last block. All that is put on the
    model can be taken off: see `remove`. Raises PlanError if the model does not allow the plan and UnknownModelError if
    its class has no spec.
    """

    def __init__(self, model: ModelMixin, mesh: Mesh, remembers: bool = True) -> None:
        """remembers: whether work on the conditions alone is done once; only where nobody else writes to them."""
        self.model = model
        self.dtype = model.dtype
        self.spec: ModelSpec = spec_for(type(model).__name__)
        self.sizes = sizes_of_module(model, self.spec.blocks)
        self.remembers = remembers
        self.hooks = Hooks()
        self.parking = Parking(model, mesh.device)
        self.source: ModelSource | None = None
        self.unread: ModelSource | None = None  # where the weights are to be read from
        self.adapted: set[str] = set()
        self.working_bytes = 0  # what the device has room for beside the weights
        self.local_conditions: deque[tuple[torch.Tensor, Axis, torch.Tensor]] = deque(maxlen=MAX_CONDITIONS)
        self._install(mesh, self._backend_for(mesh))
        self.whole_bytes = held_bytes(model)  # read by other threads, which are not to look into the model meanwhile
        own = {path: block for path, block in blocks_at(model, self.spec.blocks).items() if block in self.stage.blocks}
        self.fetched = BlockPrefetcher(model, own, mesh.device, self.spec.shared, timeline=mesh.timeline)
        self.compiled = CompiledBlocks(self.stage.blocks, mesh.device)

    @property
    def weight_bytes(self) -> int:
        """Of the weights that this rank keeps on its device."""
        return self.whole_bytes - self.fetched.elsewhere

    @property
    def resident_bytes(self) -> int:
        """Of those that are there now."""
        return 0 if self.parking.is_parked else self.weight_bytes

    def check_plan(self, plan: ParallelPlan) -> None:
        """Raises PlanError if the model does not allow the plan."""
        plan.check_model(**self.spec.limits(self.model.config))

    def token_count(self, latents: Sequence[int]) -> int:
        """Of latents of this shape, (B, C, …)."""
        _, patch = self.spec.geometry(self.model.config)
        return latents[0] * math.prod(size // side for size, side in zip(latents[2:], patch, strict=False))

    def working(self, latents: Sequence[int]) -> int:
        """The bytes that a forward takes beside the weights, for latents of this shape, (B, C, …), on the rank that has
        the most of it; alike on all."""
        heads, head_dim, _ = self.spec.sizes(self.model.config)
        activation = self.token_count(latents) * heads * head_dim * self.dtype.itemsize
        return math.ceil(rank_bytes(device_bytes(activation), latents[0], self.mesh.plan))

    def compiling(self, steps: int) -> AbstractContextManager[None]:
        """While entered, the blocks run as they are to in a sampling of so many steps: compiled, or as they are."""
        return self.compiled.running(self.compiled.settings_for(self.mesh.plan, steps))

    def spared(self, free: int) -> int:
        """What weights may have of so much memory of the device."""
        return free - SPARE

    def _backend_for(self, mesh: Mesh) -> Backend:
        """Attention's kernel. Raises PlanError if the model does not allow the plan, or the device the kernel."""
        config, plan = self.model.config, mesh.plan
        self.check_plan(plan)
        return choose_backend(plan.attention, mesh.device, self.dtype, self.spec.sizes(config).head_dim, plan.ring)

    def _install(self, mesh: Mesh, backend: Backend) -> None:
        """Puts the plan on a model that has none on it, one seam after the other."""
        model, spec, hooks, plan = self.model, self.spec, self.hooks, mesh.plan
        self.mesh = mesh
        self.slot = ForwardSlot(plan.patch_count)
        layout = TokenLayout(spec.streams[0], mesh["sequence"], self.slot)
        attention = ParallelAttention(mesh, layout, backend)
        skips = spec.skips is not None
        own = stages_of(plan, self.sizes.blocks)[mesh["pipefusion"].index]
        self.stage = keep_stage(model, spec.rows(), own, hooks, skips)
        self.link = StageLink(mesh, self.slot) if plan.pipefusion > 1 else None
        if mesh["sequence"].degree * plan.pipefusion * plan.patch_count > 1 or backend is not NATIVE:
            sizes = spec.sizes(model.config)
            install_token_boundary(model, spec, layout, hooks, self.stage, self.link)
            for block in self.stage.blocks:
                if mesh["ulysses"].degree > 1:
                    Beside(block, spec.beside, sizes.heads * sizes.head_dim, self.slot).install(hooks)
                for name, streams in spec.self_attention.items():
                    if getattr(block, name, None) is not None:
                        module = block.get_submodule(name)
                        attend: Attend = partial(attention, module, streams)
                        if spec.kv_heads:
                            attend = partial(with_unrepeated, attend, spec.kv_heads(model.config))
                        install_attention(block, name, [attend], hooks, self.slot)
        self.memos = memoise(model, spec.memoised, hooks) if self.remembers else []
        if spec.prepare:
            spec.prepare(model, hooks)  # last, so that its hooks see whole streams

    def replan(self, mesh: Mesh) -> None:
        """Puts another plan on the weights that are there, parked ones too. Runs no collectives.

        Only for a mesh whose plan leaves every rank the weights that it holds, see `same_weights`. Raises PlanError;
        nothing has changed then.
        """
        if not same_weights(self.mesh.plan, mesh.plan):
            raise ValueError(f"{mesh.plan} shares out the weights in another way than {self.mesh.plan}.")
        backend = self._backend_for(mesh)
        self.forget()
        self.hooks.remove()
        self._install(mesh, backend)
        self.fetched.install()

    def remove(self) -> None:
        """Takes all of it off the model, which then is as it was before, and this transformer of no use.

        Additions to the weights stay in them. Raises RequestError where other stages' weights were never
        read; nothing has changed then.
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
        self.hooks.remove()

    @classmethod
    def load(cls, source: ModelSource, mesh: Mesh, check: Check = go_on) -> ParallelTransformer:
        """Builds the model, cuts it to this rank's part, and reads that part's weights. Runs no collectives.

        Raises ModelFileError too, and what `check` does.
        """
        transformer = cls.build(source, mesh)
        transformer.bring((), None, check)
        return transformer

    @classmethod
    def build(cls, source: ModelSource, mesh: Mesh) -> ParallelTransformer:
        """The model cut to this rank's part, without weights, which `bring` reads. Raises ModelFileError too."""
        transformer = cls(build_transformer(source), mesh)
        transformer.source = transformer.unread = source
        return transformer

    def bring(self, places: Collection[int], store: Store | None, check: Check = go_on) -> None:
        """Has the weights of these of this rank's blocks fetched from a store, and all others on the device.

        Weights that are not there yet are read, this rank's part of them; runs no collectives then. Raises
        ModelFileError, or what `check` does; the model is of no use then.
        """
        unread, self.unread = self.unread, None
        self.fetched.rearrange(places, store, partial(self._stored, unread, check) if unread else None)
        if unread:
            names = [name for name, _, _ in self.fetched.names()]
            load_weights(self.model, unread, self.mesh.device, check, names)
        self.fetched.park_with(self.parking)

    def _stored(self, source: ModelSource, check: Check, row: FlatBlock) -> Values:
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

        latents: (B, C, H, W), or (B, C, F, H, W) for video. timestep_B: in the model's own units.
        conditions: the spec's, each batch first. steps: of its sampling. Raises RequestError, on every rank alike, for
        input that the model cannot take.
        """
        self.mesh.plan.check_one_forward()
        self.check(latents, timestep_B, conditions)
        with torch.inference_mode(), self.mesh.timeline.step("forward"), self.compiling(steps):
            forward = Forward(self.slot.every_segment())
            local = self.forward(latents, timestep_B, conditions, self.mesh["batch"], forward)
            if local is None or any(self.mesh[axis].index for axis in EVERY_AXES):
                return None  # another rank has the same and sends it
            return collect(local, BATCH_DIM, len(latents), self.mesh["batch"])

    def predict(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Conditions, axis: Axis, forward: Forward
    ) -> torch.Tensor | None:
        """Like the call, without the checks: the whole batch's prediction on every rank of the last stage.

        axis: over which the batch is shared. The prediction is of the segments that run in `forward`; values elsewhere
        mean nothing. None on other stages.
        """
        local = self.forward(latents, timestep_B, conditions, axis, forward)
        return None if local is None else gather(local, BATCH_DIM, len(latents), axis)

    def forward(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Conditions, axis: Axis, forward: Forward
    ) -> torch.Tensor | None:
        """This rank's rows of the batch through the model; None if the rows went on to the next stage."""
        device, dtype = self.mesh.device, self.dtype
        rows = shard(latents, BATCH_DIM, axis).to(device, dtype)
        if not len(rows):
            self.fetched.serve(forward.absent)
            return rows if self.link is None or self.link.is_last else None
        conditions = {name: self.local_condition(name, value, axis) for name, value in conditions.items()}
        inputs = self.spec.inputs(self.model.config, rows, shard(timestep_B, BATCH_DIM, axis).to(device), conditions)
        try:
            with self.slot.enter(forward), self.fetched.forward(StageExit):
                sample = self.model(**inputs, return_dict=False)[0]
        except StageExit:
            return None
        return self.spec.output(self.model.config, sample, rows)

    def patch(self, _latents: torch.Tensor) -> tuple[int, ...]:
        """What of the latents becomes a token, over their last dims."""
        return self.spec.geometry(self.model.config)[1]

    def local_condition(self, name: str, whole: torch.Tensor, axis: Axis) -> torch.Tensor:
        """This rank's rows of a condition, on its device; the same tensor as long as the whole one is the same."""
        held = next((local for known, over, local in self.local_conditions if known is whole and over is axis), None)
        if held is None:
            dtype = self.dtype if whole.is_floating_point() and name not in self.spec.exact else None
            held = shard(whole, BATCH_DIM, axis).to(self.mesh.device, dtype)
            self.local_conditions.append((whole, axis, held))
        return held

    def forget(self) -> None:
        """Drops what is remembered of the last request's conditions."""
        self.local_conditions.clear()
        for memo in self.memos:
            memo.forget()

    def check(self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: dict[str, torch.Tensor]) -> None:
        """Raises RequestError for what the model cannot take; depends on the request alone, so all ranks agree."""
        config = self.model.config
        channels, patch = self.spec.geometry(config)
        if latents.ndim != 2 + len(patch) or latents.shape[1] != channels:
            sizes = "(batch, {}, height, width)" if len(patch) == 2 else "(batch, {}, frames, height, width)"
            raise RequestError(
                f"The latent has shape {tuple(latents.shape)}, and {self.spec.model_class} here takes "
                f"{sizes.format(channels)}.",
                "Use an empty-latent node or a VAE made for this model.",
            )
        if any(size % side or not size for size, side in zip(latents.shape[2:], patch, strict=True)):
            shape, sides = ("×".join(map(str, sizes)) for sizes in (latents.shape[2:], patch))
            names = "frames×height×width" if len(patch) == 3 else "height×width"
            raise RequestError(
                f"The latent measures {shape} ({names}), and the model works on patches of {sides}.",
                "Use sizes that are multiples of these, in latent pixels.",
            )
        if timestep_B.ndim != 1 and not (self.spec.timestep_by_frame and timestep_B.shape[1:] == latents.shape[2:3]):
            raise RequestError(
                f"The timesteps have the shape {tuple(timestep_B.shape)}: parts of the latent have levels of noise of "
                f"their own, which {self.spec.model_class} cannot honour here.",
                "Remove the noise mask.",
            )
        self.check_appended(channels, patch, conditions)
        bound = self.spec.largest(config) if self.spec.largest else latents.shape[2:]
        largest = [most * side for most, side in zip(bound, patch, strict=True)]
        if any(size > most for size, most in zip(latents.shape[2:], largest, strict=True)):
            shape, most = ("×".join(map(str, sizes)) for sizes in (latents.shape[2:], largest))
            raise RequestError(
                f"The latent measures {shape} (height×width), and this {self.spec.model_class} has positions for "
                f"{most} at most, in latent pixels.",
                "Use a smaller size, and upscale the image.",
            )
        required = set(self.spec.conditions) - set(self.spec.optional)
        if not required <= set(conditions) <= set(self.spec.conditions):
            raise RequestError(
                f"{self.spec.model_class} takes the conditions {', '.join(self.spec.conditions)}; "
                f"got {', '.join(conditions) or 'none'}."
            )
        for name, key in self.spec.widths.items():
            width = config[key] if name in conditions else None
            if width and conditions[name].shape[-1] != width:
                raise RequestError(
                    f"{name} has shape {tuple(conditions[name].shape)}, and this {self.spec.model_class} takes a "
                    f"width of {width}.",
                    "Encode the prompt with the text encoder that belongs to the model.",
                )
        for name, value in {"timestep": timestep_B, **conditions}.items():
            if len(value) != len(latents):
                raise RequestError(f"{name} is for a batch of {len(value)}, the latent for one of {len(latents)}.")
        for name, value in {"latent": latents, "timestep": timestep_B, **conditions}.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise RequestError(f"The {name} holds NaN or infinite values; the node that made it went wrong.")
        if self.spec.check:
            self.spec.check(config, conditions)

    def check_appended(self, channels: int, patch: tuple[int, ...], conditions: Conditions) -> None:
        """Raises RequestError for latents beside the request's own that have a wrong shape, or meet PipeFusion."""
        given = [name for name in self.spec.appended if name in conditions]
        for name, shape in ((name, conditions[name].shape) for name in given):
            if self.mesh.plan.patch_count > 1:
                raise RequestError(
                    f"PipeFusion's patches are of the image alone, and {name} adds tokens to it.",
                    "Use pipefusion=1 and patches=1, and ulysses, ring, cfg or dp in their place.",
                )
            sizes = zip(shape[2:], patch, strict=False)
            if len(shape) != 2 + len(patch) or shape[1] != channels or any(size % side for size, side in sizes):
                raise RequestError(
                    f"{name} has shape {tuple(shape)}; this model takes {channels} channels, in patches of "
                    f"{'×'.join(map(str, patch))} latent pixels."
                )
