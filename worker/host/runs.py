"""What a worker group has sampled of late: for each run, how long its steps took, and how much of that they waited."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..wire.operations import SAMPLE
from ..wire.protocol import Header

KEPT = 10  # runs
STEPS = 500  # of a run, the last ones
LEARNT = 8  # likewise, the first of a plan, by which predictions are corrected
UNKNOWN = "auto"  # in words, a plan that auto has not chosen yet


class RunPlan(NamedTuple):
    """A plan in words, and as a JSON object; and of how many ranks it is."""

    words: str
    values: Header
    ranks: int = 1


@dataclass
class Run:
    """One sampling, of one node. model: as the person chose it; model_class: what computes it. plans: that it had, one
    after the other; none before auto has chosen. total: how many steps it will have, where that is known; at: how many
    are done. seconds: of the whole, once it has ended.

    steps: seconds of each that the ranks made, and how many of them went into communication; a sampler may have several
    in a step of its own. made: how many there were. residuals: bytes of ControlNets that went to the ranks with a step,
    the most of any. predicted: seconds of a step, as told before it; is_measured: by what was measured of this machine.
    of_plan: the steps since then. alone: seconds of such a step on one device, if the run is on several, as likewise
    predicted; is_alone_run: or as they were when it ran so. size: what tells its first step from those of other sizes.
    state: running, done, cancelled or failed. began: seconds since the epoch.
    """

    id: int
    node: str | None
    model: str
    plans: list[RunPlan]
    model_class: str = ""
    operation: str = SAMPLE.name
    total: int | None = None
    at: int = 0
    made: int = 0
    residuals: int = 0
    predicted: float | None = None
    is_measured: bool = False
    alone: float | None = None
    is_alone_run: bool = False
    size: Any = None
    of_plan: list[tuple[float, float]] = field(default_factory=list)
    steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=STEPS))
    state: str = "running"
    began: float = field(default_factory=time.time)
    seconds: float | None = None
    is_ended: bool = False  # by who stopped the group, so that the run's next request starts it not again

    def to_json(self) -> dict[str, Any]:
        told = {name: value for name, value in vars(self).items() if name not in ("of_plan", "size")}
        plans = list(self.plans)
        told |= {"plan": ", ".join(plan.words for plan in plans) or UNKNOWN, "plans": [plan.values for plan in plans]}
        return {**told, "steps": [list(step) for step in self.steps.copy()]}


class Runs:
    """The last runs, newest first. Written by the thread that samples, read by any. changed: set with each change."""

    def __init__(self, changed: threading.Event) -> None:
        self.changed = changed
        self.kept: deque[Run] = deque(maxlen=KEPT)
        self.ids = itertools.count(1)

    @property
    def current(self) -> Run | None:
        """The run that goes on, if one does; of one inside another, the inner."""
        return next((run for run in list(self.kept) if run.state == "running"), None)

    @contextlib.contextmanager
    def run(self, node: str | None, model: str, plan: RunPlan | None, model_class: str = "") -> Iterator[None]:
        """While entered, steps are those of one run. node: the id of ComfyUI's node that samples. plan: None for one
        that is not known yet, see `planned`."""
        plans = [plan] if plan else []
        run, began = Run(next(self.ids), node, model, plans, model_class), time.monotonic()
        self.kept.appendleft(run)
        self.changed.set()
        try:
            yield
        except Exception:
            run.state = "failed"
            raise
        except BaseException:  # an interrupt is no Exception in ComfyUI
            run.state = "cancelled"
            raise
        else:
            run.state = "done"
        finally:
            run.seconds = time.monotonic() - began
            self.changed.set()

    def end(self) -> None:
        """The group is stopped: the run that goes on, if one does, makes no more requests."""
        run = self.current
        if run:
            run.is_ended = True

    @property
    def is_ended(self) -> bool:
        run = self.current
        return run is not None and run.is_ended

    def planned(self, plan: RunPlan) -> None:
        """Notes the plan that the run that goes on, if one does, has from now on."""
        run = self.current
        if run:
            run.plans.append(plan)
            self.changed.set()

    @property
    def is_new(self) -> bool:
        """Whether nothing is predicted yet of the run that goes on."""
        run = self.current
        return run is not None and run.predicted is None and run.alone is None

    def predicted(self, seconds: float, is_measured: bool) -> None:
        """Notes what a step of the run that goes on is predicted to take from now on."""
        run = self.current
        if run:
            run.predicted, run.is_measured, run.of_plan = seconds, is_measured, []
            self.changed.set()

    def compared(self, alone: float, is_alone_run: bool, is_measured: bool) -> None:
        """Notes what a step of the run that goes on takes on one device, see `Run`."""
        run = self.current
        if run:
            run.alone, run.is_alone_run, run.is_measured = alone, is_alone_run, is_measured
            self.changed.set()

    def sized(self, operation: str, size: Any) -> None:
        """Notes of what size the first step is of the run that goes on, if one does. Of several ranks, of whose model
        nothing is predicted, it is compared with the last such run on one."""
        run = self.current
        if run is None or run.size is not None:
            return
        run.operation, run.size = operation, size
        if run.alone is None and run.plans and run.plans[-1].ranks > 1:
            alike = (run.model, run.model_class, operation, size)
            for other in list(self.kept):
                is_alone = other.state == "done" and [plan.ranks for plan in other.plans] == [1]
                if is_alone and other.steps and alike == (other.model, other.model_class, other.operation, other.size):
                    self.compared(statistics.median(seconds for seconds, _ in other.steps), True, True)
                    break

    def reached(self, at: int, total: int) -> None:
        """Notes how far the sampler of the run that goes on has come, if one does."""
        run = self.current
        if run:
            run.at, run.total = at, total
            self.changed.set()

    def sent_residuals(self, size: int) -> None:
        """Notes that so many bytes of ControlNets have gone to the ranks in the run that goes on, if one does."""
        run = self.current
        if run and size > run.residuals:
            run.residuals = size
            self.changed.set()

    def step(self, operation: str, seconds: float, communication: float) -> None:
        """Notes a step that the ranks have made of the run that goes on, if one does."""
        run = self.current
        if run:
            run.operation = operation
            run.steps.append((seconds, communication))
            if len(run.of_plan) < LEARNT:
                run.of_plan.append((seconds, communication))
            run.made += 1
            self.changed.set()

    def to_json(self) -> list[dict[str, Any]]:
        return [run.to_json() for run in list(self.kept)]
