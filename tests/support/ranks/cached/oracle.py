"""Step caches by definition, on a plain model in one process: what parallel runs of them are compared with.

A forward that is skipped is computed in all the same ways but one, and nothing of diffusers' hooks or of the engine's
stands on the model; with the engine this shares the names in the specs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from unittest import mock

import torch

from parallel_backend.models import BlockList, ModelSpec
from parallel_backend.models.checks import modules_at
from parallel_backend.seams.arguments import Arguments, Parameters

Run = Callable[[], torch.Tensor]
WARM_UP = 3


def skipped_lists(spec: ModelSpec) -> list[BlockList]:
    """The lists whose blocks are skipped together: refiners see other streams, and always run."""
    return [blocks for blocks in spec.blocks if "refiner" not in blocks.path]


def watched_argument(spec: ModelSpec) -> str:
    """The argument by which a first block takes the image."""
    first, image = skipped_lists(spec)[0], spec.image or "img"
    return next((name for name, stream in first.tokens.items() if image in str(stream).split("+")), first.returned[0])


class SerialFirstBlock:
    """The first-block cache: where the image's residual of the first block has changed by no more than the threshold,
    relative to that of the last forward that was computed, the other blocks add what they added then."""

    def __init__(self, model: torch.nn.Module, spec: ModelSpec, threshold: float) -> None:
        lists = skipped_lists(spec)
        self.blocks = [(each.returned, block) for each in lists for block in modules_at(model, each.path)]
        self.watched, self.threshold = watched_argument(spec), threshold
        self.kept: dict[Hashable, tuple[torch.Tensor, list[torch.Tensor]]] = {}
        self.changes: list[float] = []
        self.skipped = self.forwards = 0
        self.runs, self.adds = True, False

    def __call__(self, key: Hashable, run: Run) -> torch.Tensor:
        """A forward. key: whose state it has."""
        with mock.patch.multiple(self, runs=False, adds=False):
            self.patched(run)  # the model's own code carries the first block's result to the last
        residual, base = self.residual, self.given
        self.forwards += 1
        if key in self.kept:
            before, self.added = self.kept[key]
            change = float((residual - before).abs().mean() / before.abs().mean())
            self.changes.append(change)
            if not change > self.threshold:
                self.skipped += 1
                with mock.patch.multiple(self, runs=False, adds=True):
                    return self.patched(run)
        result = self.patched(run)
        added = [
            torch.zeros_like(old) if new is None else new - old for new, old in zip(self.result, base, strict=True)
        ]
        self.kept[key] = residual, added
        return result

    def patched(self, run: Run) -> torch.Tensor:
        patches: list[AbstractContextManager] = []
        for place, (returned, block) in enumerate(self.blocks):
            forward = self.head if place == 0 else self.tail if place == len(self.blocks) - 1 else self.between
            plain, parameters = block.forward, Parameters(inspect.signature(block.forward))

            def stand_in(*args, _parts=(forward, plain, parameters, returned), **kwargs):
                forward, plain, parameters, returned = _parts
                values = Arguments(parameters, args, kwargs).values
                given = [values[name].clone() for name in returned]  # blocks add to what they are given, in place
                return forward(lambda: plain(*args, **kwargs), given, returned)

            patches.append(mock.patch.object(block, "forward", stand_in))
        for patch in patches:
            patch.__enter__()
        try:
            return run()
        finally:
            for patch in patches:
                patch.__exit__(None, None, None)

    def head(self, compute: Callable, given: list[torch.Tensor], returned: Sequence[str]):
        output = compute()
        place = returned.index(self.watched)
        self.residual = (output[place] if isinstance(output, tuple) else output) - given[place]
        return output

    def between(self, compute: Callable, given: list[torch.Tensor], _returned: Sequence[str]):
        return compute() if self.runs else as_returned(given)

    def tail(self, compute: Callable, given: list[torch.Tensor], _returned: Sequence[str]):
        self.given = given
        if self.runs:
            output = compute()
            self.result = list(output) if isinstance(output, tuple) else [output]
            return output
        parts = zip(given, self.added, strict=True) if self.adds else ()
        return as_returned([old + more for old, more in parts] or given)


def as_returned(parts: list[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    return parts[0] if len(parts) == 1 else tuple(parts)


class SerialTaylorSeer:
    """TaylorSeer of order 1 on what the head gives: every forward is computed, and the head's result replaced where it
    is to be predicted."""

    def __init__(self, model: torch.nn.Module, spec: ModelSpec, interval: int) -> None:
        blocks = [block for each in spec.blocks for block in modules_at(model, each.path)]  # the last list may be empty
        self.module = model.get_submodule(spec.head.path) if spec.head else blocks[-1]
        self.interval = interval
        self.kept: dict[Hashable, tuple[int, list[torch.Tensor], list[torch.Tensor]]] = {}
        self.counts: dict[Hashable, int] = {}
        self.skipped = self.forwards = 0

    def __call__(self, key: Hashable, run: Run) -> torch.Tensor:
        step = self.counts[key] = self.counts.get(key, -1) + 1
        self.forwards += 1
        computes = step < WARM_UP or (step - WARM_UP - 1) % self.interval == 0
        self.skipped += not computes

        def replace(_module: torch.nn.Module, _args: tuple, output):
            parts = list(output) if isinstance(output, tuple) else [output]
            if computes:
                slopes = [torch.zeros_like(part) for part in parts]
                if key in self.kept:
                    at, before, _ = self.kept[key]
                    slopes = [(new - old) / (step - at) for new, old in zip(parts, before, strict=True)]
                self.kept[key] = step, parts, slopes
                return output
            at, values, slopes = self.kept[key]
            return as_returned([value + (step - at) * slope for value, slope in zip(values, slopes, strict=True)])

        handle = self.module.register_forward_hook(replace)
        try:
            return run()
        finally:
            handle.remove()
