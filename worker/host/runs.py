"""A worker group's last runs: how long their steps took, and how much of that was communication."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import Explanation, WorkerGroupError
from ..wire.operations import SAMPLE

KEPT = 10  # the last runs
STEPS = 500  # the last steps of a run
NUMBERS = 1 << 16
HIDDEN = ("plan_steps", "numbers", "ended", "clock", "paced")  # from pages
USUAL_OF = 8  # the first steps of a plan, of which a usual one is told and kept
UNKNOWN = "auto"  # shown while auto has not chosen a plan
Plan = Any  # a ParallelPlan of the engine, of which the service imports nothing here


@dataclass
class RunRecord:
    """One sampling by one node.

    model: as the person chose it. model_class: the class that computes it. plans: the plans that it had, in order;
    empty until auto has chosen. total: the number of its steps, if known. at: how many are done. state: running, done,
    cancelled or failed. began: seconds since the epoch. seconds: of the whole run, once it has ended. startup: the
    seconds before its first step, in which ranks may have started and loaded the model; None before that step. left:
    the estimated seconds to its end; None if unknown.

    steps: for each step of the ranks, its seconds and the seconds of communication in it; a sampler's own step may
    contain several. made: how many steps the ranks made.

    predicted: the predicted seconds of a step. is_measured: the prediction uses this machine's measurements.
    plan_steps: the first steps since the prediction, see `usual`. alone: the seconds of a usual step on one device,
    predicted or as it ran (is_alone_run); None if the run itself is on one device. reason: what is special about it, in
    words, such as why it is less parallel than asked. is_stock: ComfyUI's own model runs it, in ComfyUI's process.
    """

    id: int
    node: str | None
    model: str
    plans: list[Plan]
    model_class: str = ""
    operation: str = SAMPLE.name
    total: int | None = None
    at: int = 0
    made: int = 0
    predicted: float | None = None
    is_measured: bool = False
    alone: float | None = None
    is_alone_run: bool = False
    plan_steps: list[tuple[float, float]] = field(default_factory=list)
    steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=STEPS))
    state: str = "running"
    began: float = field(default_factory=time.time)
    seconds: float | None = None
    startup: float | None = None
    left: float | None = None
    reason: str = ""
    is_stock: bool = False
    numbers: Any = None  # NUMBERS of its latents, evenly spaced, on the CPU, by which it is compared with others
    ended: Explanation | None = None  # why its group has ended; then the run makes no more requests
    clock: float = 0.0  # when it began
    paced: tuple[int, float] | None = None  # the first steps that were done, and when

    @property
    def usual(self) -> float | None:
        """The seconds of a usual step of the last plan, see `pick_usual_step`; None before there is one. All pages show
        this figure, and auto keeps it."""
        return pick_usual_step(self.plan_steps, self.plans[-1].whole_steps if self.plans else 0)

    def to_json(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name not in HIDDEN}
        plans = list(self.plans)
        fields |= {
            "usual": self.usual,
            "plan": ", ".join(map(str, plans)) or UNKNOWN,
            "plans": [plan.to_json() for plan in plans],
        }
        return {**fields, "steps": [list(step) for step in self.steps.copy()]}

    def keep_numbers(self, latents: Any) -> None:
        """Keeps numbers of the run's latents, a tensor. An odd step reaches all rows and columns."""
        flat = latents.flatten()
        self.numbers = flat[:: max(1, len(flat) // NUMBERS) | 1].cpu().double()


class Runs:
    """The last runs, newest first. The sampling thread writes; any thread reads. changed: set with each change."""

    def __init__(self, changed: threading.Event) -> None:
        self.changed = changed
        self.kept: deque[RunRecord] = deque(maxlen=KEPT)
        self.ids = itertools.count(1)

    @property
    def current(self) -> RunRecord | None:
        """The current run, if there is one. Of nested runs, the inner one."""
        return next((run for run in list(self.kept) if run.state == "running"), None)

    @property
    def record(self) -> RunRecord:
        """The current run. Without one, a record that nobody keeps."""
        return self.current or RunRecord(0, None, "", [])

    @contextlib.contextmanager
    def run(self, node: str | None, model: str, plan: Plan | None, model_class: str = "") -> Iterator[RunRecord]:
        """While entered, steps belong to one run. node: the id of ComfyUI's node that samples. plan: None while it is
        not known, see `planned`."""
        plans = [plan] if plan else []
        run = RunRecord(next(self.ids), node, model, plans, model_class, clock=time.monotonic())
        self.kept.appendleft(run)
        self.changed.set()
        try:
            yield run
        except BaseException as error:  # ComfyUI's interrupt is not an Exception
            run.state = "failed" if isinstance(error, Exception) else "cancelled"
            raise
        else:
            run.state = "done"
        finally:
            run.seconds = time.monotonic() - run.clock
            self.changed.set()

    def end(self, reason: Explanation) -> None:
        """Notes that the group was stopped or died: the current run makes no more requests."""
        self.record.ended = reason

    def died(self, reason: Explanation) -> None:
        """Notes that the group died. A run that has made no step yet goes on in the next group."""
        if self.record.made:
            self.end(reason)

    def check_ended(self) -> None:
        """Raises WorkerGroupError if the group was stopped or died in the current run."""
        if ended := self.record.ended:
            ended = ended.because("The worker group ended between two steps. ")
            raise WorkerGroupError(*ended.advised("Queue the prompt again."))

    def planned(self, plan: Plan) -> None:
        """Notes the plan of the current run from now on."""
        self.record.plans.append(plan)
        self.record.plan_steps = []
        self.changed.set()

    def progress(self, at: int, total: int) -> None:
        """Notes how many of its sampler's steps the current run has done. What is left is estimated by the wall clock:
        a sampler does more in a step than the ranks do."""
        run, now = self.record, time.monotonic()
        if run.paced is None or at <= run.paced[0]:
            run.paced = at, now
        first, since = run.paced
        run.at, run.total = at, total
        run.left = (total - at) * (now - since) / (at - first) if at > first else None
        self.changed.set()

    def note(self, **values: Any) -> None:
        """Notes values of the current run from now on, by their names in `RunRecord`."""
        run = self.record
        if any(getattr(run, name) != value for name, value in values.items()):
            vars(run).update(values)
            self.changed.set()

    def step(self, operation: str, seconds: float, communication: float) -> None:
        """Notes a step of the ranks in the current run."""
        run = self.record
        run.operation = operation
        if run.startup is None:
            run.startup = max(0.0, time.monotonic() - run.clock - seconds)
        run.steps.append((seconds, communication))
        if len(run.plan_steps) < USUAL_OF:
            run.plan_steps.append((seconds, communication))
        run.made += 1
        self.changed.set()

    def relative_error(self, run: int, exact: int) -> float | None:
        """Returns the norm of the difference of two runs' latents, divided by the norm of the exact ones'. None if they
        are of unequal size, or not kept. run, exact: ids."""
        found = {each.id: each.numbers for each in list(self.kept) if each.numbers is not None}
        if run not in found or exact not in found or found[run].shape != found[exact].shape:
            return None
        error = float((found[run] - found[exact]).norm() / found[exact].norm())
        return error if math.isfinite(error) else None

    def to_json(self) -> list[dict[str, Any]]:
        return [run.to_json() for run in list(self.kept)]


def pick_usual_step(steps: Sequence[tuple[float, float]], whole: int = 0) -> float | None:
    """Returns the seconds of the median step. The first step lays out memory, so it only counts if there is no other.
    whole: how many of the first ones run whole, and say nothing of others. None if all do."""
    usual = sorted(seconds for seconds, _ in steps[max(1, whole) :] or steps[whole:])
    return usual[(len(usual) - 1) // 2] if usual else None
