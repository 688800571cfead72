"""Runs blocks through `torch.compile`. Each block is one graph. The hooks that shard it are outside of the graph.

Blocks of one kind share a graph. Attention over shared tokens is one of its operators, see `attention_op`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ..compat import options_of_mode, why_no_compiler
from ..device import CPU
from ..errors import RequestError
from ..hooks import Hooks
from ..models.spec import ALWAYS_WHOLE
from ..plan import AUTO, ParallelPlan
from .attention import ATTENTION, AttentionSeam
from .attention_op import RUNNING, traceable_attention

BY_PLAN = {"backend": "inductor"}
ALWAYS_CALLED = "_forward_hooks_always_called"
ON_PRESENCE = ("DICT_CONTAINS", "DICT_NOT_CONTAINS")  # torch's names of guards on whether a dict has an entry
PLAIN = (bool, int, float, str, type(None))


class CompiledBlocks:
    """The graphs stay valid under another plan. Each is valid for the attention paths with which it was compiled."""

    def __init__(self, blocks: Iterable[torch.nn.Module], device: torch.device) -> None:
        self.blocks = list(blocks)
        self.device = device
        self.compiled_for: Mapping[str, Any] = {}  # settings
        self.forwards: list[Callable[..., Any]] = []

    def settings_for(self, plan: ParallelPlan, steps: int) -> Mapping[str, Any]:
        """Returns the settings for a sampling of this many steps; none if nothing is compiled. auto does not compile on
        a CPU, where it does not pay, or if there is no compiler. Ranks may decide differently, because compiling is
        local."""
        is_cpu = self.device.type == CPU
        if not plan.compiles(steps) or plan.compile == AUTO and (is_cpu or why_no_compiler(is_cpu)):
            return {}
        return BY_PLAN

    @contextmanager
    def running(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """While entered, the blocks run compiled with these arguments; without any, they run as they are."""
        if not settings:
            yield
            return
        if settings != self.compiled_for:  # torch removes the arguments that it uses, so each has a copy
            self.forwards = [torch.compile(each.forward, **arguments_of(settings)) for each in self.blocks]
            self.compiled_for = settings
            logging.info("%d blocks run through torch.compile (%s)", len(self.blocks), settings.get("backend"))
        with Hooks() as hooks:
            for block, forward in zip(self.blocks, self.forwards, strict=True):
                hooks.replace(block, "forward", partial(run, forward, seams_of(block)))
            hooks.replace(F, "scaled_dot_product_attention", traceable_attention)
            hooks.replace(RUNNING, "compiles", True)
            yield


def arguments_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings for `torch.compile`, with a mode turned into its options, and with `needed`."""
    mode, given = settings.get("mode"), {name: value for name, value in settings.items() if name != "mode"}
    options = {**(options_of_mode(mode) if mode else {}), **settings.get("options", {})}
    return {**given, "options": {**options, "guard_filter_fn": needed}}


def check_compiler(settings: Mapping[str, Any], device: torch.device) -> None:
    """Raises RequestError if blocks are to be compiled with these arguments and this rank cannot do it."""
    reason = why_no_compiler(device.type == CPU) if settings.get("backend") == BY_PLAN["backend"] else None
    if reason:
        raise RequestError(
            f"The model's blocks cannot be compiled: {reason}.",
            "Install it where the ranks run; or use compile=off in the plan, and no TorchCompileModel.",
        )


def seams_of(block: torch.nn.Module) -> Mapping[str, AttentionSeam]:
    """Returns the seams of a block's modules, by path."""
    found = ((path, vars(module).get(ATTENTION)) for path, module in block.named_modules())
    return {path: seam for path, seam in found if seam}


def run(forward: Callable[..., Any], seams: Mapping[str, AttentionSeam], *args: Any, **kwargs: Any) -> Any:
    """Runs a compiled forward with these seams for its operators. Its tensors are made contiguous, because each other
    memory order would need one more graph."""
    RUNNING.by_path, RUNNING.paths = seams, tuple(seams)
    return forward(*map(in_order, args), **{name: in_order(value) for name, value in kwargs.items()})


def in_order(value: Any) -> Any:
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def needed(entries: Iterable[Any]) -> list[bool]:
    """Whether a guard of a graph is needed. A graph is valid for what it saw only.

    Nodes' options are new objects in every call, so only guards on plain values in them are needed, and on whether
    there is an entry: the model's code may branch on these. Guards on hooks that always run are not needed. torch
    distinguishes hooks by their numbers, although one graph fits all of them.
    """
    return [
        ALWAYS_CALLED not in entry.name
        and (
            ALWAYS_WHOLE not in entry.name
            or entry.guard_type in ON_PRESENCE
            or (entry.has_value and isinstance(entry.value, PLAIN))
        )
        for entry in entries
    ]
