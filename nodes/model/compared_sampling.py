"""Runs a sampling under a lossy setting, and once more under the exact one, and says how they differ.

This wraps the whole sampling, so it works with every sampler, scheduler and guider.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import comfy.model_management
import comfy.samplers
import comfy.utils
import torch

from ...parallel_backend.device import generators
from ...parallel_backend.errors import PlanError
from ...parallel_backend.plan import AUTO, LOSSY_ATTENTION, MODEL, OFF, ParallelPlan
from ...worker.errors import RequestRefused
from ...worker.host.runs import RunRecord
from .comparison import Comparison, Comparisons, StepClock, relative_error
from .remote_module import RemoteModule
from .sampling import Callback, show_on_node

Guider = comfy.samplers.CFGGuider
# Runs the sampling with a sampler and a callback. Returns the latents and the record of the run.
Run = Callable[[Any, Callback | None], tuple[torch.Tensor, RunRecord]]
EXACT_RUN = "The exact run of a comparison."


class Compared(NamedTuple):
    """text: what is said. exact: the exact latents, if this sampling made the comparison."""

    text: str
    exact: torch.Tensor | None = None


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
    with the same noise. Returns the latents of the setting itself.

    A Parallel Sampler's sampler has more: `compares`, whether it asks; `exact()`, the same without a step cache; and
    `compared`, which gets the result.
    """
    if not (stand_in.compares or getattr(sampler, "compares", False)):
        return run(sampler, callback)[0]
    clock, state = StepClock(), GuiderState(guider)
    latents, record = run(sampler, clock.wrap(callback))

    def run_exactly(plan: ParallelPlan, clock: StepClock) -> torch.Tensor:
        exact = sampler.exact() if hasattr(sampler, "exact") else sampler
        with use_plan(stand_in, plan), state.restored():
            found, other = run(exact, clock.wrap(show_progress()))
        other.reason = EXACT_RUN
        return found

    compared = compare(guider, stand_in, sampler, sigmas, noise, latents, clock, run_exactly)
    record.comparison = compared.text
    stand_in.group.runs.changed.set()
    if hasattr(sampler, "compared"):
        sampler.compared = compared
    else:
        logging.info("[ParallelDiT] %s", compared.text)
        show_on_node(compared.text)
    return latents


def compare(
    guider: Guider,
    stand_in: RemoteModule,
    sampler: Any,
    sigmas: torch.Tensor,
    noise: torch.Tensor,
    latents: torch.Tensor,
    clock: StepClock,
    run_exactly: Callable[[ParallelPlan, StepClock], torch.Tensor],
) -> Compared:
    """Compares latents with those of the exact setting, or finds an earlier comparison."""
    if stand_in.runs_here:
        return Compared("Nothing to compare: the model ran as stock.")
    cache, setting = describe_sampler(guider, sampler, sigmas)
    lossy, plan = stand_in.plan, find_exact_plan(stand_in, len(sigmas) - 1 if cache is None else setting["steps"])
    if plan == lossy and not cache:
        return Compared("Nothing to compare: this setting is exact.")
    key, known = make_key(stand_in, setting, noise.shape), Comparisons()
    if found := known.get(key):
        return Compared(f"{found.text} (Found on an earlier prompt.)")
    words, exact_clock = f"{lossy}, {cache} cache" if cache else str(lossy), StepClock()
    try:
        exact = run_exactly(plan, exact_clock)
    except (RequestRefused, PlanError) as error:
        return Compared(f"The exact run under {plan} was refused: {error}")
    error = relative_error(latents, exact)
    comparison = Comparison(error, words, str(plan), clock.seconds, exact_clock.seconds)
    known.put(key, comparison)
    return Compared(comparison.text, exact)


def describe_sampler(guider: Guider, sampler: Any, sigmas: torch.Tensor) -> tuple[str | None, dict[str, Any]]:
    """Returns the step cache of a Parallel Sampler's call, empty without one; None for a stock sampler. Also returns
    what tells samplings apart. Prompt and seed do not count."""
    if hasattr(sampler, "describe"):
        return sampler.describe(guider.cfg)
    options = getattr(sampler, "extra_options", {})
    function = getattr(getattr(sampler, "sampler_function", None), "__qualname__", "")
    return None, {
        "sampler": [type(sampler).__name__, function, {name: str(value) for name, value in options.items()}],
        "sigmas": [round(float(sigma), 4) for sigma in sigmas],
        "guider": [type(guider).__name__, guider.cfg],
    }


def make_key(stand_in: RemoteModule, setting: Mapping[str, Any], shape: torch.Size) -> str:
    """Identifies a setting by model, plan, sampling and size."""
    text = json.dumps([stand_in.source, stand_in.plan.to_json(), setting, list(shape)], sort_keys=True, default=str)
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
