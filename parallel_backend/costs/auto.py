"""The plan that an automatic one comes to, by what arrives: a model of ComfyUI's, and what is asked of it at a time.

Read in ComfyUI's process too, which has no torch.distributed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from ..axes import BATCH_AXES
from ..models.checks import changes_of, sizes_of
from ..models.spec import ModelSpec, spec_of
from ..plan import ParallelPlan, ulysses_of
from .forward import ForwardCost

IDLE_REQUESTS = 2

Reason = TypeVar("Reason")


@dataclass(frozen=True)
class Work:
    """What is asked of a model at a time: so many parts of one size, each of which can be computed by itself.

    has_branches: whether some are of cond and others of uncond. tokens, rows: whether what nodes have run inside of the
    model bears that tokens, or the rows of a batch, are shared. forward: what one part takes, where that is known.
    """

    parts: int = 1
    has_branches: bool = False
    tokens: bool = True
    rows: bool = True
    forward: ForwardCost | None = None

    @classmethod
    def of(cls, rows: Sequence[int], branches: Sequence[Sequence[int]]) -> Work:
        """Of calls of so many rows each; branches: those of a call's rows, one after the other, 0 being cond."""
        known = {branch for each in branches for branch in each}
        apart = len(branches) == 1 or all(len(set(each)) == 1 for each in branches)
        return cls(len(rows) * math.gcd(*rows), has_branches=apart and len(known) > 1)


def shareable(model: torch.nn.Module) -> ModelSpec | None:
    """The spec of the model's class, if it says how tokens are shared, and fits the class."""
    spec = spec_of(type(model))
    return None if spec is None or spec.unshared or changes_of(model) else spec


def couples(model: torch.nn.Module) -> bool:
    """Whether the rows of the model's batch cannot be computed apart."""
    spec = spec_of(type(model))
    return spec is not None and spec.couples(model)


def auto_plan(devices: int, model: torch.nn.Module, work: Work) -> ParallelPlan:
    """The plan for so many devices where nobody knows what a forward takes. What can be computed apart is, as that
    needs no communication, and the rest of them share tokens, where the class's spec says how.

    It is of as many ranks whatever the work, since another number would be another group; but where neither can be
    shared, of one.
    """
    tokens = shareable(model) if work.tokens else None
    shares_rows = work.rows and not couples(model)
    ranks = devices if shares_rows or tokens else 1
    ways = 1 if not shares_rows else math.gcd(ranks, work.parts) if tokens else ranks
    cfg = 2 if work.has_branches and ways % 2 == 0 else 1
    ulysses = ulysses_of(ranks // ways, sizes_of(model, tokens).heads) if tokens else 1
    return ParallelPlan(dp=ways // cfg, cfg=cfg, ulysses=ulysses, ring=ranks // ways // ulysses)


class PlanOfRun(Generic[Reason]):
    """An automatic plan over the requests of a sampling, of which the first decides.

    After that it gives way only to one that shares the batch in fewer ways, where ranks had nothing to do for some
    requests on end, as when guidance ends before the last step. So no pattern of requests has it go to and fro.
    """

    def __init__(self, choose: Callable[[Work], tuple[ParallelPlan, Reason]]) -> None:
        """choose: a plan, and why it is so, always of as many ranks."""
        self.choose = choose
        self.plan, self.why = choose(Work())
        self.is_open, self.idle = True, 0
        self.parts = 1  # for which the plan was chosen: ranks that were to wait from the first change nothing

    def begin(self) -> None:
        """A sampling begins: its first request decides."""
        self.is_open, self.idle = True, 0

    def follow(self, work: Work) -> bool:
        """Whether a request about this work changes the plan, or decides on it."""
        ways, is_first = self.plan.ways(BATCH_AXES), self.is_open
        self.idle = self.idle + 1 if work.parts < min(ways, self.parts) else 0
        if not is_first and self.idle < IDLE_REQUESTS:
            return False
        plan, why = self.choose(work)
        self.is_open, self.idle = False, 0
        if not is_first and plan.ways(BATCH_AXES) >= ways:
            return False
        self.plan, self.why, self.parts = plan, why, work.parts
        return True
