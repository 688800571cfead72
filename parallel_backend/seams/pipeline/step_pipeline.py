"""Makes the forwards of a step, for any plan. Runs PipeFusion for a sampler that asks for one step at a time, as most
samplers do.

In each of its steps, patch after patch goes through the stages. A patch attends to its own fresh keys and values, and
to the stale ones of the other patches (`StaleCache`). The sampler gets a whole prediction, so every sampler works. The
price is that the pipeline fills and drains in each step: (stages − 1) of (patches × forwards + stages − 1) turns.

The result is that of the loop in `sampling/denoiser.py`, where a patch does not wait for the others' step. The tokens
that come out of a patch's last block are kept until the step ends (`Forward.finished`). So the forward of the last
patch returns the whole prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...compat import list_tensors
from ...errors import RequestError
from ...groups.calls import Call
from ...models.spec import ALWAYS_WHOLE, CONTROL, PATCH_OPTIONS
from ...plan import ParallelPlan
from ..exchange.differences import Differences
from ..forward import Forward, StaleCache
from .regions import token_grid

# How many kinds of steps keep their keys and values at the same time. A node such as perturbed attention guidance makes
# a sampler ask for two in turns.
MOST_KINDS = 3
# Sampling goes from high timesteps to low ones. Some samplers go back a little. Steps that go back by more than this
# share of the first timestep begin anew, as a restart does.
BACK = 0.05


class StepKind:
    """What the steps of one kind keep. They have calls of the same shapes and conditions, with the same nodes inside of
    the model.

    caches, differences: by this rank's part of the calls; None if the plan keeps none. conditions: the tensors of the
    calls, other than latents; kept, because the kind is known by them. whole: how many steps still run whole. rises:
    whether timesteps go from low to high; None if not known yet.
    """

    def __init__(self, plan: ParallelPlan, calls: Sequence[Call], parts: int, whole: int, rises: bool | None) -> None:
        self.caches = [StaleCache() if plan.patch_count > 1 else None for _ in range(parts)]
        self.differences = [Differences() if plan.keeps_differences else None for _ in range(parts)]
        self.rises = rises
        self.conditions = conditions_of(calls)
        self.first = self.timestep = timestep_of(calls)
        self.whole = whole

    def goes_back(self, calls: Sequence[Call]) -> bool:
        """Takes the next step into account. Returns whether it goes back to an earlier timestep."""
        before, self.timestep = self.timestep, timestep_of(calls)
        moved, self.first = self.timestep - before, max(self.first, self.timestep)
        if self.rises is None and moved:
            self.rises = moved > 0
        if (-moved if self.rises else moved) <= BACK * self.first:
            return False
        self.first = self.timestep
        self.differences = [each and Differences() for each in self.differences]
        return True


class StepPipeline:
    """Runs the calls of a step, and keeps what later steps need under a plan with patches or int4.

    Every rank makes the same calls with the same values, so all decide alike.
    why: why the last step ran whole, although it was not one of the first; else empty. rises: whether a sampling's
    timesteps go from low to high; None to learn it from the steps. done: how many steps the sampling has made, if its
    caller knows.
    """

    def __init__(self, plan: ParallelPlan) -> None:
        self.plan = plan
        self.rises: bool | None = False
        self.every_patch = list(range(plan.patch_count))
        self.why = ""
        self.forget()

    def forget(self, why: str = "") -> None:
        """Frees all keys and values. The next step begins a sampling; or it goes on with one, and runs whole for this
        reason."""
        self.kinds: dict[Any, StepKind] = {}
        self.done, self.forgotten = 0, why

    @property
    def keeps(self) -> bool:
        """Whether steps keep something for later ones, so that `begin` reads its calls."""
        return len(self.every_patch) > 1 or self.plan.keeps_differences

    def begin(
        self, calls: Sequence[Call], own: Sequence[int], count: Callable[[Call], int | None]
    ) -> list[list[Forward]]:
        """Begins a step. Returns its turns: the forwards of this rank's parts of the calls, over all patches or over
        one. own: the call of each part. count: returns the tokens of a call's picture, or raises RequestError if they
        cannot be cut into patches; None if the image's stream may have others."""
        self.why = ""
        if not self.keeps:
            return [[Forward(self.every_patch, index=index) for index in range(len(own))]]
        has_patches = len(self.every_patch) > 1
        tokens = [count(call) if has_patches else 0 for call in calls]
        kind = self.find_kind(calls, len(own))
        is_whole = not has_patches or kind.whole > 0
        kind.whole = max(0, kind.whole - 1)
        finished = [None if is_whole else dict[object, torch.Tensor]() for _ in own]

        def forward(patches: list[int], index: int, call: int) -> Forward:
            return Forward(
                patches,
                kind.caches[index],
                index=index,
                image_tokens=tokens[call],
                differences=kind.differences[index],
                finished=finished[index],
            )

        turns = [self.every_patch] if is_whole else [[patch] for patch in self.every_patch]
        return [[forward(patches, *each) for each in enumerate(own)] for patches in turns]

    def find_kind(self, calls: Sequence[Call], parts: int) -> StepKind:
        """Returns what the steps of these calls' kind keep, and takes the calls' timestep into account."""
        name = describe_steps(calls)
        kind = self.kinds.pop(name, None)
        if kind is None:
            least = int(len(self.every_patch) > 1)  # patches need the keys of a whole step
            whole = max(min(least, self.plan.whole_steps), self.plan.whole_steps - self.done)
            kind = StepKind(self.plan, calls, parts, whole, self.rises)
            is_new = self.kinds and not any(other.whole for other in self.kinds.values())
            if self.plan.whole_steps and (self.forgotten or is_new):
                self.why = self.forgotten or "the shapes, the conditions, or the nodes inside of the model changed"
            self.forgotten = ""
        elif kind.goes_back(calls) and self.plan.whole_steps:
            kind.whole, self.why = max(kind.whole, 1), "the sampler went back to an earlier timestep"
        self.kinds[name] = kind  # as the one that was used last
        while len(self.kinds) > MOST_KINDS:
            del self.kinds[next(iter(self.kinds))]
        return kind


WITHOUT = "Use patches=1, or ulysses, ring, cfg or dp in place of pipefusion."


def count_picture_tokens(call: Call, patch_size: Callable[[torch.Tensor], tuple[int, ...]]) -> int:
    """Returns the tokens of a call's picture. patch_size: tells that of a tensor of latents. Raises RequestError
    if it has no whole tokens, or several parts."""
    if len(call.latents) != 1:
        raise RequestError("PipeFusion's patches are of one latent, and this one has several parts.", WITHOUT)
    (latents,) = call.latents
    return math.prod(token_grid(latents, patch_size(latents)))


def describe_steps(calls: Sequence[Call]) -> tuple:
    """Returns what tells steps of different kinds apart: the calls' shapes and conditions, and what nodes do inside of
    the model."""
    found: list[tuple] = [tuple(map(id, conditions_of(calls)))]
    for call in calls:
        options = call.kwargs.get(ALWAYS_WHOLE) or {}
        inside = tuple(str(names_in(options.get(name))) for name in PATCH_OPTIONS)
        found.append((*(tuple(each.shape) for each in call.latents), tuple(sorted(call.kwargs)), inside))
    return tuple(found)


def names_in(value: Any) -> Any:
    """Returns the names in nested dicts, and how many values lists have."""
    if isinstance(value, dict):
        return sorted((str(name), names_in(each)) for name, each in value.items())
    return len(value) if isinstance(value, (list, tuple)) else None


def timestep_of(calls: Sequence[Call]) -> float:
    """Returns the highest timestep of the calls. It is on the host, so no device is waited for."""
    return max(float(call.args[1].max()) for call in calls)


def conditions_of(calls: Sequence[Call]) -> list[torch.Tensor]:
    """Returns the calls' tensors other than latents, timesteps, options and ControlNets' inputs. Ranks keep conditions
    between requests, so the same condition is the same tensor."""
    own = [{name: call.kwargs[name] for name in sorted(call.kwargs)} for call in calls]
    return list_tensors([each for call in own for name, each in call.items() if name not in (ALWAYS_WHOLE, CONTROL)])
