"""A model on a mesh. Every rank makes the same call together, with any arguments that the model's forward takes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from .apply_plan import apply_plan, apply_plan_inside
from .axes import TOKEN_AXES
from .compat import tree_map_only
from .costs.memory import stale_bytes
from .errors import PlanError, RequestError
from .groups.calls import Call, Forms, Output, Part, collect_calls, receive_output, send_output, share_out
from .groups.mesh import Axis, Mesh
from .hooks import Hooks
from .models.checks import count_tokens, patch_size_of
from .models.spec import ALWAYS_WHOLE, CONTROL, spec_of
from .seams.agreed_values import agreed_values
from .seams.compiled import CompiledBlocks
from .seams.forward import Forward, ForwardSlot, NodeCode
from .seams.kept import KeptValues
from .seams.kernels.backends import Backend
from .seams.pipeline.stages import StageExit, StageMessage, StandIn
from .seams.pipeline.step_pipeline import StepPipeline, count_picture_tokens
from .weights.prefetcher import BlockPrefetcher
from .weights.sizes import blocks_of, weight_sizes_of

PLAIN = (bool, int, float, str)  # values without tensors


class RunOptions(NamedTuple):
    """How forwards run, beside the plan. code: which code runs in the model beside its own. kernel: computes shared
    attention in place of the plan's. compile: arguments of `torch.compile` for the blocks, in place of the plan's
    choice; empty: they are not compiled."""

    code: NodeCode = NodeCode.UNKNOWN
    kernel: Backend | None = None
    compile: Mapping[str, Any] | None = None


class ParallelModel:
    """Applies a plan to an unmodified model, from outside.

    dp and cfg split the batch, ulysses and ring split the tokens, pipefusion splits the blocks, as the spec of the
    model's class says. For a class without a spec, only the batch can be split. Raises PlanError if the plan asks for
    more.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        mesh: Mesh,
        dtype: torch.dtype,
        dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        """dtype: what the model computes in. dtypes: by name, for parameters that still have another dtype."""
        self.model = model
        self.dtype = dtype
        self.hooks = Hooks()
        self.options = RunOptions()
        self.spec = spec_of(type(model))
        self.sizes = weight_sizes_of(model, dtypes)
        self.kept = KeptValues(model, self.spec)
        # Runs the networks beside the model, such as ControlNets, on this rank's rows; returns the call's arguments.
        self.complete: Callable[[tuple, dict[str, Any]], dict[str, Any]] = lambda args, kwargs: kwargs
        self.install(mesh)
        own = {path: block for path, block in blocks_of(model).items() if not isinstance(block, StandIn)}
        shared = self.spec.shared if self.spec else ()
        self.fetched = BlockPrefetcher(model, own, mesh.device, shared, dtypes, mesh.timeline)
        self.compiled = CompiledBlocks(self.blocks or [model], mesh.device)

    def install(self, mesh: Mesh) -> None:
        """Applies a mesh's plan to a model that has none. Raises PlanError and leaves the model unchanged then."""
        self.mesh, self.slot = mesh, ForwardSlot(mesh.plan.patch_count)
        self.blocks, self.link, self.attention, self.layout = apply_plan(
            self.model, self.spec, mesh, self.dtype, self.sizes, self.slot, self.hooks
        )
        if self.spec and self.spec.prepare:
            self.spec.prepare(self.model, self.hooks)
        self.pipeline = StepPipeline(mesh.plan)
        self.row_forms, self.stage_forms = Forms(), Forms()
        self.kept.drop()

    def replan(self, mesh: Mesh) -> None:
        """Applies another plan with the same stages to the same weights. Runs no collectives.

        Raises PlanError and changes nothing then.
        """
        before = self.mesh
        self.forget()
        ParallelModel.remove(self)
        try:
            self.install(mesh)
        except PlanError:
            self.install(before)
            raise
        finally:
            self.fetched.install()

    def share_inside(self, network: torch.nn.Module, dtype: torch.dtype) -> Hooks:
        """Lets a network that runs inside of this model's forward compute this rank's tokens, until the hooks are
        removed. A network of another class, or of a model whose tokens are not shared, computes what it is given.

        dtype: what the network computes in. Raises PlanError if its class is not the one that is known.
        """
        hooks, spec = Hooks(), spec_of(type(network))
        if spec and spec.inside is not None and self.layout:
            apply_plan_inside(network, spec, self.layout, self.mesh, dtype, hooks)
        return hooks

    def remove(self) -> None:
        """Takes the plan off the model, and restores the model as it was."""
        self.hooks.close()
        self.link = None

    @contextmanager
    def attending_by(self, kernel: Backend | None) -> Iterator[None]:
        """While entered, shared attention is computed by this kernel in place of the plan's. None changes nothing."""
        with Hooks() as hooks:
            if self.attention and kernel:
                hooks.replace(self.attention, "backend", kernel)
            yield

    @contextmanager
    def running_with(self, options: RunOptions) -> Iterator[None]:
        """While entered, forwards run with these options. Values that code between the blocks reads from tensors decide
        what it calls, so all ranks read those of the first."""
        needs_all_tokens = options.code is NodeCode.BETWEEN_BLOCKS
        agreed = agreed_values(self.mesh["sequence"], self.slot) if needs_all_tokens else nullcontext()
        with Hooks() as hooks, agreed, self.attending_by(options.kernel):
            hooks.replace(self, "options", options)
            hooks.replace(self.slot, "code", options.code)
            hooks.replace(self.slot, "has_all_tokens", needs_all_tokens)
            yield

    def compiling(self, steps: int) -> AbstractContextManager[None]:
        """Runs the blocks inside the context compiled or not, as suits a sampling of this many steps."""
        return self.compiled.running(self.compile_settings(self.options.compile, steps))

    def compile_settings(self, asked: Mapping[str, Any] | None, steps: int) -> Mapping[str, Any]:
        """Returns the settings with which `compiling` compiles the blocks; none if it does not. asked: see
        `RunOptions.compile`.

        For a class without a spec, this applies to the whole model. In bands of rows nothing is compiled: its layers
        exchange rows.
        """
        if self.spec and self.spec.bands and self.attention:
            return {}
        return self.compiled.settings_for(self.mesh.plan, steps) if asked is None else asked

    def stale_bytes(self, latents: Sequence[Sequence[int]]) -> int:
        """Returns the bytes of what is kept for later steps, see `costs/memory.py`, for a step's calls with latents of
        these shapes (B, C, …). It is equal on all ranks."""
        tokens = Counter[int]()
        for part in share_out([rows for rows, *_ in latents], self.mesh["batch"]):
            rows, *sizes = latents[part.call]
            tokens[part.group] += count_tokens(self.model, [part.rows.own_size(rows), *sizes])
        return stale_bytes(self.model, self.mesh.plan, self.sizes, self.dtype, max(tokens.values()))

    def run_calls(self, calls: Sequence[Call], steps: int = 1) -> list[Output] | None:
        """Returns the forward's output, one or several tensors, for each call on global rank 0; None elsewhere.

        Every rank calls it with the same values. Their tensors may be on any device. steps: of the whole sampling.
        Under a plan with PipeFusion, the calls are those of the sampling's next step. Raises RequestError.
        """
        if len({tuple(each.ndim for each in call.latents) for call in calls}) != 1:
            raise RequestError("The calls of one request have latents of as many dims.", "Restart ComfyUI.")

        @functools.cache
        def given(call: int) -> tuple:
            return moved(tuple(calls[call]), self.mesh.device)

        def run(part: Part, forward: Forward) -> Output | None:
            args, kwargs = given(part.call)
            return self.run_rows(args, kwargs, calls[part.call].size, part.rows, forward)

        with torch.inference_mode(), self.mesh.timeline.step("forward"), self.compiling(steps):
            outputs, parts = self.run_parts(calls, run, partial(count_picture_tokens, patch_size=self.patch_size))
            self.slot.buffers.clear()  # this step may have been the last
            return self.collect(outputs, parts, calls)

    def run_parts(
        self,
        calls: Sequence[Call],
        run: Callable[[Part, Forward], Output | None],
        count: Callable[[Call], int | None] = lambda call: None,
    ) -> tuple[list[Any], list[Part]]:
        """Runs this rank's parts of a step's calls: at once, or patch by patch. Returns the parts' outputs on the last
        stage, with None in their place elsewhere, and the parts of all ranks. run: runs a part's forward. count: see
        `StepPipeline.begin`."""
        axis = self.mesh["batch"]
        parts = share_out([call.size for call in calls], axis)
        own = [part for part in parts if part.group == axis.index]
        idle = max(Counter(part.group for part in parts).values()) - len(own)
        turns = self.pipeline.begin(calls, [part.call for part in own], count)
        outputs: list[Any] = [None] * len(own)
        if self.link:
            messages = [StageMessage(each.step, each.running, each.index) for turn in turns for each in turn]
            self.link.expect([] if self.link.is_first else messages, None, len(own) - 1)
        while turns:
            turn = turns.pop(0)
            for index, part in enumerate(own):
                outputs[index] = run(part, turn.pop(0))  # frees what a forward has cached
            for _ in range(idle):
                self.fetched.serve()
        if self.link:
            self.link.finish()
        return outputs, parts

    def collect(self, outputs: Sequence[Any], parts: Sequence[Part], calls: Sequence[Any]) -> list[Output] | None:
        """Returns each call's output on global rank 0; None elsewhere. calls: with a `size` and a `kind` each.

        The last stage collects them on its first batch group, which sends them to the first stage."""
        if any(self.mesh[name].index for name in TOKEN_AXES):  # another rank of the batch group sends its result
            return None
        stages, axis, device = self.mesh["pipefusion"], self.mesh["batch"], self.mesh.device
        last, found = stages.degree - 1, None
        if stages.index == last:
            found = collect_calls(outputs, parts, calls, axis, device, self.row_forms)
        if not last or axis.index:
            return found
        kinds = [(call.size, *call.kind) for call in calls]
        if found is not None:
            for output, kind in zip(found, kinds, strict=True):
                send_output(output, stages, self.stage_forms, kind)
        if stages.index:
            return None
        return [receive_output(last, stages, device, self.stage_forms, kind) for kind in kinds]

    def run_rows(self, args: tuple, kwargs: dict[str, Any], size: int, axis: Axis, forward: Forward) -> Any:
        """Runs the model on this rank's rows. None if it has no rows, or its tokens went to the next stage."""
        if not axis.own_size(size):
            self.fetched.serve()
            return None
        args = tuple(rows_of(value, size, axis) for value in args)
        whole = (ALWAYS_WHOLE, *(self.spec.unsplit if self.spec else ()))
        kwargs = {name: value if name in whole else rows_of(value, size, axis) for name, value in kwargs.items()}
        return self.run(args, kwargs, forward)

    def run(self, args: tuple, kwargs: dict[str, Any], forward: Forward) -> Any:
        """Runs the model on this rank's arguments. None if the tokens went to the next stage."""
        kwargs = self.kept.identify(self.complete(args, kwargs))
        if self.slot.code in (NodeCode.INSIDE, NodeCode.BETWEEN_BLOCKS):
            kwargs = self.copied(kwargs)
        output = None
        with self.slot.enter(forward), self.fetched.forward(StageExit):
            output = self.model(*args, **kwargs)
        if output is None:
            return None
        if forward.lengths and not forward.gathered and self.slot.code is not NodeCode.BETWEEN_BLOCKS:
            raise RequestError(
                "A node makes the model skip its last block, but the ranks' tokens are gathered after that block.",
                "Have it skip other blocks, or use ulysses=1 and ring=1.",
            )
        return output

    def copied(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments with copies of their tensors: a node's function may write into what it gets, and the
        next forward gets the same. What the model knows by identity stays."""
        own = (ALWAYS_WHOLE, CONTROL, *self.kept.names)  # what ControlNets return is made for one forward
        copy = partial(tree_map_only, torch.Tensor, torch.clone)
        return {name: value if name in own else copy(value) for name, value in kwargs.items()}

    def patch_size(self, latents: torch.Tensor) -> tuple[int, ...]:
        """Returns the sizes of the latents that become a token, over their last dims. All 1 if not known."""
        dims = latents.ndim - 2
        return patch_size_of(self.model, self.spec, dims) if self.spec else (1,) * dims

    def forget(self) -> None:
        """Drops what is cached for the last sampling."""
        self.pipeline.forget()
        self.slot.buffers.clear()
        self.kept.drop()


def rows_of(value: Any, size: int, axis: Axis) -> Any:
    """Returns this rank's rows of a tensor as long as the batch, also in lists and dicts. Other values stay whole."""
    own = axis.own(size)
    cut = lambda tensor: tensor[own] if tensor.ndim and len(tensor) == size else tensor  # noqa: E731
    return value if axis.degree == 1 else map_tensors(cut, value)


def moved(value: Any, device: torch.device) -> Any:
    """Returns a value with all its tensors on a device. The host does not wait for copies from pinned memory, which
    must stay as it is until the device has run what follows."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), value)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Returns a value with all its tensors changed. Each forward does this twice, and torch's own function takes the
    host 0.1 ms. So only containers of other classes are left to it."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return change(value)
    if kind is dict:
        return {name: map_tensors(change, each) for name, each in value.items()}
    if kind is list or kind is tuple:
        return kind(map_tensors(change, each) for each in value)
    return value if value is None or kind in PLAIN else tree_map_only(torch.Tensor, change, value)
