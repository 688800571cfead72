"""Says which plans auto may use for a model and the work of one call, and keeps one for a sampling.

Processes without torch.distributed import this, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..axes import BATCH_AXES
from ..errors import PlanError
from ..models.checks import attention_sizes_of, check_module, list_spec_mismatches
from ..models.spec import ModelSpec, spec_of
from ..plan import ParallelPlan
from .choose import list_plans
from .forward import Work

IDLE_REQUESTS = 2


def shareable(model: torch.nn.Module) -> ModelSpec | None:
    """Returns the spec of the model's class if the class fits it and its tokens can be shared."""
    spec = spec_of(type(model))
    return None if spec is None or spec.unshared or list_spec_mismatches(model) else spec


def couples(model: torch.nn.Module) -> bool:
    """Whether the rows of the model's batch depend on each other."""
    spec = spec_of(type(model))
    return spec is not None and spec.couples(model)


def list_model_plans(devices: int, model: torch.nn.Module, work: Work) -> list[ParallelPlan]:
    """Returns the plans that this model and work allow on all these devices, see `list_plans`. If they allow none,
    returns one for one device. Bands of rows are listed only if their cost is known: on a slow link they may be slower
    than one device.

    All other plans use every device: another count would need a new process group.
    """
    tokens = shareable(model)

    def check(plan: ParallelPlan) -> None:
        """Raises PlanError if the model or the work does not allow a plan."""
        cuts_rows = not work.splits_rows and work.parallel_calls % plan.ways(BATCH_AXES)
        if cuts_rows or plan.token_ways > 1 and not work.splits_tokens:
            raise PlanError("A node's function needs them together.")
        if plan.token_ways > 1 and tokens and tokens.bands and work.forward is None:
            raise PlanError("What sharing a picture in bands costs is unknown.")
        check_module(plan, model)

    heads = attention_sizes_of(model, tokens).heads if tokens else 1
    found = list_plans(devices, work.parts, check, branches=work.has_branches, heads=heads)
    return found or [ParallelPlan()]


class PlanOfRun:
    """The plan of a sampling, if it depends on the work. The first request decides it.

    After that, it only changes to a plan that shares the batch less, and only after ranks were idle for some requests
    in a row. That happens, for example, when guidance ends before the last step. So no pattern of requests makes it
    alternate.
    """

    def __init__(self, choose: Callable[[Work], Any], is_set: bool = False) -> None:
        """choose: returns an object with a `plan`. All its plans have the same number of ranks. is_set: whether the
        first one is the user's, whatever the work."""
        self.choose, self.is_set = choose, is_set
        self.choice = choose(Work())
        self.begin()
        self.parts = 1  # that the plan was chosen for: ranks that idle from the start change nothing

    def begin(self) -> None:
        """Begins a sampling. Its first request decides the plan."""
        self.is_undecided, self.idle = not self.is_set, 0

    def follow(self, work: Work) -> bool:
        """Takes the next request into account. Returns whether it decides or changes the plan."""
        if self.is_set:
            return False
        ways, is_first = self.plan.ways(BATCH_AXES), self.is_undecided
        self.idle = self.idle + 1 if work.parts < min(ways, self.parts) else 0
        if not is_first and self.idle < IDLE_REQUESTS:
            return False
        choice = self.choose(work)
        self.is_undecided, self.idle = False, 0
        if not is_first and choice.plan.ways(BATCH_AXES) >= ways:
            return False
        self.choice, self.parts = choice, work.parts
        return True

    @property
    def plan(self) -> ParallelPlan:
        return self.choice.plan
