"""Runs a sampling under a lossy setting, and once more under the exact one, and says how they differ.

This wraps the whole sampling, so it works with every sampler, scheduler and guider.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import comfy.model_management
import comfy.samplers
import comfy.utils
import torch

from ...parallel_backend.device import generators
from ...parallel_backend.errors import PlanError
from ...parallel_backend.plan import AUTO, LOSSY_ATTENTION, MODEL, OFF, ParallelPlan
from ...worker.errors import RequestRefused, WorkerGroupError
from ...worker.host.runs import RunRecord
from .comparison import Comparison, Comparisons, mean_step, relative_error
from .remote_module import RemoteModule
from .sampling import Callback, show_on_node

Guider = comfy.samplers.CFGGuider
# Runs the sampling with a sampler, a callback, and what is special about the run, in words. Returns the latents and the
# record of the run.
Run = Callable[[Any, Callback | None, str], tuple[torch.Tensor, RunRecord]]
EXACT_RUN = "The exact run of a comparison."


class Compared(NamedTuple):
    """text: what is said. exact: the exact latents, if this sampling made the comparison."""

    text: str
    exact: torch.Tensor | None = None


class ComparableSampler:
    """A sampler that knows how its samplings are compared. compares: whether it asks for it. compared: the result."""

    compares = False
    compared: Compared | None = None

    def count_steps(self) -> int:
        raise NotImplementedError

    def describe(self, guider: Guider) -> dict[str, Any]:
        """Returns what tells samplings apart. Prompt and seed do not count."""
        raise NotImplementedError


class StockSampler(ComparableSampler):
    """Any other sampler. sigmas: of the sampling."""

    def __init__(self, sampler: Any, sigmas: torch.Tensor) -> None:
        self.sampler, self.sigmas = sampler, sigmas

    def count_steps(self) -> int:
        return len(self.sigmas) - 1

    def describe(self, guider: Guider) -> dict[str, Any]:
        function = getattr(self.sampler, "sampler_function", None)
        options = {key: name_of(value) for key, value in getattr(self.sampler, "extra_options", {}).items()}
        return {
            "sampler": [type(self.sampler).__name__, name_of(function), options],
            "sigmas": [round(float(sigma), 4) for sigma in self.sigmas],
            "guider": [type(guider).__name__, numbers_of(guider)],
        }


def name_of(value: Any) -> str:
    """Returns a value in words that are the same in every process."""
    return getattr(value, "__qualname__", type(value).__name__) if callable(value) else str(value)


def numbers_of(guider: Guider) -> dict[str, float]:
    """Returns a guider's scales, by name."""
    return {name: value for name, value in sorted(vars(guider).items()) if isinstance(value, (int, float))}


def sample_compared(
    guider: Guider,
    stand_in: RemoteModule,
    sampler: Any,
    sigmas: torch.Tensor,
    noise: torch.Tensor,
    callback: Callback | None,
    run: Run,
) -> torch.Tensor:
    """Runs a sampling. If its plan or its sampler asks for a comparison and the setting is lossy, also runs it exactly,
    with the same noise. Returns the latents of the setting itself."""
    comparable = sampler if isinstance(sampler, ComparableSampler) else StockSampler(sampler, sigmas)
    if not (stand_in.compares or comparable.compares):
        return run(sampler, callback, "")[0]
    state = GuiderState(guider)
    latents, record = run(sampler, callback, "")

    def run_exactly(plan: ParallelPlan) -> tuple[torch.Tensor, RunRecord]:
        with use_plan(stand_in, plan), state.restored():
            return run(sampler, show_progress(), EXACT_RUN)

    compared = compare(guider, stand_in, comparable, noise.shape, latents, record, run_exactly)
    record.comparison = compared.text
    stand_in.group.runs.changed.set()
    logging.info("[ParallelDiT] %s", compared.text)
    comparable.compared = compared
    if comparable is not sampler:  # the Parallel Sampler shows it with its pictures
        show_on_node(compared.text)
    return latents


def compare(
    guider: Guider,
    stand_in: RemoteModule,
    sampler: ComparableSampler,
    shape: torch.Size,
    latents: torch.Tensor,
    record: RunRecord,
    run_exactly: Callable[[ParallelPlan], tuple[torch.Tensor, RunRecord]],
) -> Compared:
    """Compares latents with those of the exact setting, or finds an earlier comparison. shape, record: of the lossy
    run."""
    if stand_in.runs_here:
        return Compared("Nothing to compare: the model ran as stock.")
    lossy, plan = stand_in.plan, find_exact_plan(stand_in, sampler.count_steps())
    if plan == lossy:
        return Compared("Nothing to compare: this setting is exact.")
    key, known = make_key(stand_in, sampler.describe(guider), shape), Comparisons()
    if found := known.get(key):
        return Compared(f"{found.text} (Found on an earlier prompt.)")
    if refused := stand_in.refused_comparisons.get(key):
        return Compared(f"{refused} (Tried on an earlier prompt.)")
    try:
        exact, other = run_exactly(plan)
    except (RequestRefused, PlanError, WorkerGroupError) as error:  # the latents of the setting itself are done
        text = stand_in.refused_comparisons[key] = f"The exact run under {plan} failed: {error}"
        return Compared(text)
    comparison = Comparison(relative_error(latents, exact), str(lossy), str(plan), mean_step(record), mean_step(other))
    known.put(key, comparison)
    return Compared(comparison.text, exact)


def make_key(stand_in: RemoteModule, setting: Mapping[str, Any], shape: torch.Size) -> str:
    """Identifies a setting by model, plan, sampling and size."""
    plan = {each.name: getattr(stand_in.plan, each.name) for each in fields(ParallelPlan)}
    asked = {name: value for name, value in plan.items() if value != getattr(ParallelPlan, name)}
    text = json.dumps([stand_in.source, asked, setting, list(shape)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def find_exact_plan(stand_in: RemoteModule, steps: int) -> ParallelPlan:
    """Returns a plan that computes the exact image on the same number of ranks.

    An automatic plan knows its own. Else tokens are sent in the model's own dtype, and all attend to all by an exact
    kernel. If PipeFusion's patches make the plan lossy, the ranks share tokens instead of blocks. If the model does not
    allow that, every step runs whole.
    """
    if stand_in.auto and stand_in.auto.choice.exact and stand_in.plan == stand_in.auto.plan:
        return stand_in.auto.choice.exact
    plan = replace(stand_in.plan, exchange_dtype=MODEL, sparse=OFF)
    if plan.attention in LOSSY_ATTENTION:
        plan = replace(plan, attention=AUTO)
    if plan.patch_count == 1 or plan.sync_steps >= steps:
        return plan
    whole = replace(plan, pipefusion=1, patches=0, sync_steps=1, weights=AUTO, weight_blocks=0)
    ways = [replace(whole, **{axis: getattr(plan, axis) * plan.pipefusion}) for axis in ("ulysses", "ring")]
    return next((each for each in ways if stand_in.allows(each)), replace(plan, sync_steps=steps))


@contextlib.contextmanager
def use_plan(stand_in: RemoteModule, plan: ParallelPlan) -> Iterator[None]:
    """Runs the model's calls under this plan inside the context, also if the plan is automatic."""
    before = stand_in.plan, stand_in.asked, stand_in.auto
    stand_in.plan, stand_in.asked, stand_in.auto = plan, plan, None
    try:
        yield
    finally:
        stand_in.plan, stand_in.asked, stand_in.auto = before
        stand_in.replaced = None


class GuiderState:
    """What a sampling changes of its guider and of the noise that it draws, as it is before.

    The random numbers are the CPU's and those of ComfyUI's own device. Other devices belong to the ranks.
    """

    def __init__(self, guider: Guider) -> None:
        self.guider = guider
        self.conds = {name: [each.copy() for each in conds] for name, conds in guider.conds.items()}
        self.generators = generators(comfy.model_management.get_torch_device())
        self.states = self.random_states()

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Samplings inside the context find everything as it was. After them, random numbers go on as before them."""
        conds, self.guider.conds = self.guider.conds, self.conds
        states = self.random_states()
        self.set_random(self.states)
        try:
            yield
        finally:
            self.guider.conds = conds
            self.set_random(states)

    def random_states(self) -> list[torch.Tensor]:
        return [each.get_state() for each in self.generators]

    def set_random(self, states: Sequence[torch.Tensor]) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)


def show_progress() -> Callback:
    """Returns a callback that moves the bar of the running node, and shows no preview."""
    bar = comfy.utils.ProgressBar(1)
    return lambda step, _denoised, _latents, total: bar.update_absolute(step + 1, total)
