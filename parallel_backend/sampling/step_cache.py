"""Step caches on a mesh: diffusers' own hooks on a model's blocks, within the seams, for the time of a request.

Each rank caches its own tokens. All ranks that compute a forward together make one decision whether to skip blocks.
TaylorSeer decides by the step alone. The first-block cache decides by sums over all of these ranks (`SkipDecision`), as
one device would. diffusers' own cache looks at one rank's tokens only. Ranks that decide separately would wait for each
other forever.

A skipped block is still called, so that fetched weights arrive in their order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

import torch
from diffusers.hooks.first_block_cache import FBCSharedBlockState
from diffusers.hooks.hooks import CacheContext, HookRegistry, ModelHook, StateManager
from diffusers.hooks.taylorseer_cache import TaylorSeerCacheHook, TaylorSeerState

from ..compat import first_block_hook
from ..errors import RequestError
from ..groups.collectives import gather
from ..groups.mesh import Axis, Mesh
from ..hooks import Hooks
from ..models.checks import modules_at
from ..models.spec import ModelSpec, names
from ..parallel_model import ParallelModel
from ..seams.arguments import Arguments, Parameters
from ..seams.forward import ForwardSlot
from ..seams.layout import TokenLayout
from .caches import FIRST_BLOCK, CacheSettings

HIDDEN, OTHER = "hidden_states", "encoder_hidden_states"  # diffusers' names for a block's two streams
ADVICE = "Use cache=none, or EasyCache or LazyCache before a stock KSampler."
ORDER = 1  # the order of TaylorSeer's series
WARM_UP = 3  # forwards that TaylorSeer computes before it predicts one
Given = Callable[[tuple, dict[str, Any]], dict[str, torch.Tensor]]  # a block's arguments to its inputs by name


class Skipped(NamedTuple):
    """How many of a run's forwards skipped their blocks, and how many forwards there were."""

    skipped: int
    forwards: int


class Streams(NamedTuple):
    """The streams of one list of blocks, in the order in which a block returns them, with the arguments for them and
    the dim of tokens. Streams that are joined in one tensor have their names joined by "+"."""

    path: str
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    dim: int

    def given(self, parameters: Parameters, args: tuple, kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Returns a block's inputs by stream."""
        values = Arguments(parameters, args, kwargs).values
        return {name: values[argument] for name, argument in zip(self.names, self.arguments, strict=True)}

    def order_in(self, joined: Streams) -> tuple[str, ...] | None:
        """Returns the order in which another list takes these streams joined; None if it does not."""
        return next((order for order in permutations(self.names) if ("+".join(order),) == joined.names), None)

    def goes_on_in(self, after: Streams) -> bool:
        """Whether another list takes the same streams, apart or joined."""
        return set(self.names) == set(after.names) or self.order_in(after) is not None


class SkipMarker(ModelHook):
    """Marks a block as skipped, or not. The outermost hook does the former. The innermost one does the latter, because
    it only runs if the block is computed."""

    def __init__(self, slot: ForwardSlot, skipped: bool) -> None:
        super().__init__()
        self.slot, self.skipped = slot, skipped

    def pre_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple, dict[str, Any]]:
        self.slot.forward.skipped = self.skipped
        return args, kwargs


class CallCounter(ModelHook):
    """Counts how often a module is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def pre_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple, dict[str, Any]]:
        self.count += 1
        return args, kwargs


def call_wrapped(hook: ModelHook, *args: Any, **kwargs: Any) -> Any:
    """Returns what a hook precedes."""
    forward: Any = hook.fn_ref.original_forward
    return forward(*args, **kwargs)


class CopyOutput(ModelHook):
    """Returns a copy of what a module returns, because ComfyUI's blocks add to their inputs in place."""

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return output.clone()
        return type(output)(part if part is None else part.clone() for part in output)


class FillMissing(ModelHook):
    """Makes a last block return a stream as it was if the block returns None for it, which nobody reads then."""

    def __init__(self, streams: Streams, parameters: Parameters) -> None:
        super().__init__()
        self.streams, self.parameters = streams, parameters

    def new_forward(self, _module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        output = call_wrapped(self, *args, **kwargs)
        if not isinstance(output, tuple) or all(part is not None for part in output):
            return output
        given = self.streams.given(self.parameters, args, kwargs).values()
        return tuple(old if part is None else part for part, old in zip(output, given, strict=True))


class SplitStreams(ModelHook):
    """Makes a block that returns joined streams return them apart. lengths: by stream, in this rank's tokens."""

    def __init__(self, order: tuple[str, ...], wanted: tuple[str, ...], dim: int, lengths: Callable) -> None:
        super().__init__()
        self.order, self.wanted, self.dim, self.lengths = order, wanted, dim, lengths

    def split(self, joined: torch.Tensor) -> dict[str, torch.Tensor]:
        lengths = self.lengths()
        parts = joined.split([lengths[name] for name in self.order], self.dim)
        return dict(zip(self.order, parts, strict=True))

    def new_forward(self, _module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        parts = self.split(call_wrapped(self, *args, **kwargs))
        return tuple(parts[name] for name in self.wanted)


class JoinStreams(ModelHook):
    """The inverse of `SplitStreams`, outside of the hooks that work on separate streams."""

    def __init__(self, apart: SplitStreams) -> None:
        super().__init__()
        self.apart = apart

    def post_forward(self, module: torch.nn.Module, output: tuple[torch.Tensor, ...]) -> torch.Tensor:
        parts = dict(zip(self.apart.wanted, output, strict=True))
        return torch.cat([parts[name] for name in self.apart.order], self.apart.dim)


class SkipDecision:
    """Decides whether a forward's first block has changed enough for the others to run. All ranks decide alike, by
    construction. own: returns the part of a residual that belongs to this rank's tokens."""

    def __init__(self, threshold: float, mesh: Mesh, own: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.threshold, self.mesh, self.own = threshold, mesh, own
        self.axis = mesh["batch"]  # shares the forward's rows

    def __call__(self, residual: torch.Tensor, before: torch.Tensor | None) -> bool:
        """residual, before: of the first block, now and when the others last ran. Without one before, they run."""
        if before is None:
            one = torch.ones((), device=residual.device)
            return self.agree(torch.stack([one, one - 1]))
        now, then = self.own(residual).float(), self.own(before).float()
        return self.agree(torch.stack([(now - then).abs().sum(), then.abs().sum()]))

    def absent(self) -> None:
        """Takes part in the decision on a rank without rows of the batch. It adds nothing to the sums."""
        self.agree(torch.zeros(2, device=self.mesh.device))

    def agree(self, change_and_size: torch.Tensor) -> bool:
        """Decides by sums over all ranks whether the change is above the threshold. If one rank finds so, all do. This
        waits for the device once, because what runs next depends on it."""
        axes = (self.axis, self.mesh["sequence"])
        for axis in axes:
            change_and_size = gather(change_and_size[None], 0, axis.degree, axis).sum(0)
        runs = (change_and_size[:1] / change_and_size[1:] > self.threshold).float()
        for axis in axes:
            runs = gather(runs, 0, axis.degree, axis).amax(0, keepdim=True)
        return bool(runs)


class StepCache:
    """A cache on a model's blocks until `remove`. `begin` starts each forward. Its state belongs to the request."""

    def __init__(self, model: ParallelModel, settings: CacheSettings) -> None:
        """Raises RequestError for a plan or model whose blocks cannot be skipped as far as known."""
        settings.check(model.mesh.plan)
        self.model, self.mesh = model, model.mesh
        self.hooks, self.states = Hooks(), list[StateManager]()
        self.forwards, self.computed = 0, CallCounter()
        self.decision: SkipDecision | None = None
        lists = list_streams(model)
        try:
            if settings.kind == FIRST_BLOCK:
                self.install_first_block(lists, settings.threshold)
            else:
                self.install_taylorseer(lists, settings.interval)
        except BaseException:
            self.remove()
            raise

    def begin(self, index: int, axis: Axis) -> None:
        """Begins one of a step's forwards, each with its own state. axis: shares the forward's rows."""
        self.forwards += 1
        for states in self.states:
            states.set_context(CacheContext(str(index)))
        if self.decision:
            self.decision.axis = axis

    def absent(self) -> None:
        """Takes part in the decision on a rank without rows of the batch."""
        if self.decision:
            self.decision.absent()

    def skipped(self, over: Axis) -> Skipped:
        """Counts the forwards on all ranks of an axis that skipped their blocks. All ranks call this together. Rank 0's
        count is right, because it always has rows."""
        own = torch.tensor([[self.forwards - self.computed.count, self.forwards]], device=self.mesh.device)
        skipped, forwards = gather(own, 0, over.degree, over).sum(0).tolist()
        return Skipped(skipped, forwards)

    def remove(self) -> None:
        """Removes the cache from the model, with all that it keeps."""
        self.hooks.remove()
        self.states.clear()

    def new_states(self, kind: Any, **options: Any) -> StateManager:
        self.states.append(StateManager(kind, (), options))
        return self.states[-1]

    def install(self, module: torch.nn.Module, *hooks: ModelHook) -> None:
        """Puts diffusers' hooks on a module, the innermost first, within the seams' hooks."""
        self.hooks.replace(module, "forward", module.forward)
        registry = HookRegistry(module)
        slot = self.model.slot
        for place, hook in enumerate((SkipMarker(slot, False), *hooks, SkipMarker(slot, True))):
            registry.register_hook(hook, str(place))

    def install_first_block(self, lists: Sequence[Streams], threshold: float) -> None:
        lists = [each for at, each in enumerate(lists) if all(each.goes_on_in(after) for after in lists[at + 1 :])]
        blocks = [(each, block) for each in lists for block in modules_at(self.model.model, each.path)]
        if len(blocks) < 2 or len(lists[0].names) > 2:
            raise RequestError(f"{self.name} has no blocks behind its first that could be skipped together.", ADVICE)
        first, last = blocks[0][1], blocks[-1][1]
        image = find_image_stream(self.model.spec, lists[0])
        order = (image, *(name for name in lists[0].names if name != image))
        states = self.new_states(FBCSharedBlockState)
        self.decision = SkipDecision(threshold, self.mesh, partial(self.own_tokens, image, lists[0].dim))
        apart: SplitStreams | None = None
        for streams, block in blocks:
            parameters = Parameters(inspect.signature(block.forward))
            given, places = partial(name_inputs, streams, parameters, order), find_places(streams, order)
            if block is first:
                untouched = partial(copy_image_input, given)
                self.install(block, first_block_hook(states, untouched, places, self.decision), CopyOutput())
            elif block is not last:
                self.install(block, first_block_hook(states, given, places))
            elif taken := lists[0].order_in(streams) if len(order) > 1 else None:
                apart = SplitStreams(taken, order, streams.dim, partial(read_lengths, states, order, streams.dim))
                tail = first_block_hook(states, partial(split_inputs, given, apart), (0, 1), is_tail=True)
                self.install(block, self.computed, apart, tail, JoinStreams(apart))
            else:
                tail = first_block_hook(states, given, places, is_tail=True)
                self.install(block, self.computed, FillMissing(streams, parameters), tail)

    def install_taylorseer(self, lists: Sequence[Streams], interval: int) -> None:
        spec, model = self.model.spec, self.model.model
        blocks = [(each, block) for each in lists for block in modules_at(model, each.path)]
        kept = model.get_submodule(spec.head.path) if spec and spec.head else blocks[-1][1]

        def predicted(inactive: bool) -> TaylorSeerCacheHook:
            options = {"taylor_factors_dtype": torch.float32, "max_order": ORDER, "is_inactive": inactive}
            states = self.new_states(TaylorSeerState, **options)
            return TaylorSeerCacheHook(interval, WARM_UP, torch.float32, states)

        for streams, block in blocks:
            if block is not kept:
                parameters = Parameters(inspect.signature(block.forward))
                self.install(block, FillMissing(streams, parameters), predicted(inactive=True))
        self.install(kept, self.computed, predicted(inactive=False), CopyOutput())

    @property
    def name(self) -> str:
        return type(self.model.model).__name__

    def own_tokens(self, stream: str, dim: int, residual: torch.Tensor) -> torch.Tensor:
        """Returns a tensor without the padding token of a rank that has no tokens."""
        sequence = self.mesh["sequence"]
        if sequence.degree == 1:
            return residual
        return TokenLayout("", sequence, self.model.slot).drop_padding(residual, names(stream), dim)


def list_streams(model: ParallelModel) -> list[Streams]:
    """Returns a model's lists of blocks, in the order in which they run. Raises RequestError if they are unknown."""
    spec, name = model.spec, type(model.model).__name__
    if spec is None or not spec.blocks:
        raise RequestError(f"The blocks of {name} are not known here, so none can be skipped.", ADVICE)
    if reason := spec.uncached or spec.unstaged:
        raise RequestError(f"The blocks of {name} cannot be skipped together: {reason}.", ADVICE)
    found = []
    for each in spec.blocks:
        returns = each.returns if isinstance(each.returns, tuple) else (each.returns,)
        found.append(Streams(each.path, tuple(str(name) for name in returns), each.returned, each.dim))
    return found


def find_image_stream(spec: ModelSpec | None, streams: Streams) -> str:
    """Returns the stream that is the image's, or contains it."""
    image = spec.image if spec and spec.image else "img"
    return next((name for name in streams.names if image in names(name)), streams.names[0])


def name_inputs(
    streams: Streams, parameters: Parameters, order: tuple[str, ...], args: tuple, kwargs: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Returns a block's inputs by diffusers' names. order: of the streams. If all of them are joined, the tensor gets
    the first name."""
    given = streams.given(parameters, args, kwargs)
    return dict(zip((HIDDEN, OTHER), [given[name] for name in order if name in given] or given.values(), strict=False))


def copy_image_input(given: Given, args: tuple, kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Returns a copy of the first block's image input, from before the block adds to it in place."""
    return {HIDDEN: given(args, kwargs)[HIDDEN].clone()}


def split_inputs(
    given: Callable[[tuple, dict[str, Any]], dict[str, torch.Tensor]],
    apart: SplitStreams,
    args: tuple,
    kwargs: dict[str, Any],
) -> dict[str, torch.Tensor]:
    """Does the same for a block that takes joined streams."""
    parts = apart.split(given(args, kwargs)[HIDDEN])
    return {HIDDEN: parts[apart.wanted[0]], OTHER: parts[apart.wanted[1]]}


def find_places(streams: Streams, order: tuple[str, ...]) -> tuple[int, int | None]:
    """Returns where a block returns the image, and where the other stream, if it returns that."""
    if len(streams.names) == 1:
        return 0, None
    return streams.names.index(order[0]), streams.names.index(order[1])


def read_lengths(states: StateManager, order: tuple[str, ...], dim: int) -> dict[str, int]:
    """Returns this rank's tokens of each stream, as the first block returned them."""
    outputs = states.get_state().head_block_output
    return {name: part.shape[dim] for name, part in zip(order, outputs, strict=True)}
