"""Says why auto's exact plan is the one that runs. Each branch names the rule that decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...parallel_backend.axes import BATCH_AXES
from ...parallel_backend.costs.auto import Work
from ...parallel_backend.costs.choose import UNEVEN
from ...parallel_backend.costs.correct import DOUBTED, FASTEST, KEPT, LEAST, MEASURED, STAYED, TRIED_NEXT, Choice
from ...parallel_backend.costs.predict import Prediction
from ...parallel_backend.plan import ParallelPlan
from ..plan_words import Remark, format_seconds, remark

# By the rule that chose the plan: the key of its remark.
RULES = {
    FASTEST: "fastest_of",
    MEASURED: "fastest_run",
    KEPT: "kept",
    STAYED: "stayed",
    TRIED_NEXT: "tried",
    DOUBTED: "doubted",
    LEAST: "least_of",
}


def explain_choice(choice: Choice, found: Sequence[Prediction]) -> list[Remark]:
    """Says by which rule auto chose one of these predictions. Empty if there is no other."""
    if len(found) == 1:
        return []
    at, of = choice.tried or (0, 0)
    count = sum(each.fits or choice.why == LEAST for each in found)
    values = {"count": count, "best": describe_plan(choice.best), "at": at, "of": of}
    return [remark(RULES[choice.why], **values)]


def describe_plan(predicted: Prediction) -> str:
    """Returns a plan in words; one device is the same however it is written."""
    return "one device" if predicted.is_alone else str(predicted.plan)


def explain_work(
    plan: ParallelPlan, found: Sequence[Prediction], work: Work, ranks: int, heads: int, couples: bool
) -> list[Remark]:
    """Says how the work falls on the ranks under the automatic plan, and why not on more of them.

    found: the predictions, the chosen one first; empty if the cost is unknown. ranks: of an automatic plan. heads: 0 if
    the model's tokens cannot be shared. couples: whether the rows of the batch depend on each other.
    """
    if count_busy(plan, work) < ranks:
        return explain_idle(plan, found, work, ranks, heads)
    remarks, ways = [], plan.ways(BATCH_AXES)
    if couples and work.parts > 1:
        remarks.append(remark("coupled"))
    elif plan.cfg > 1:
        remarks.append(remark("guidance_first"))
    elif not work.has_branches and work.calls == 1 and ways < ranks:
        remarks.append(remark("one_pass"))
    elif ways == 1 and work.parts % ranks:
        remarks.append(remark("uneven", parts=work.parts, ranks=ranks))
    if plan.dp > 1:
        remarks.append(remark("rows_apart", dp=plan.dp))
    return [*remarks, *explain_tokens(plan, found, heads)]


def count_busy(plan: ParallelPlan, work: Work) -> int:
    """Returns how many ranks have work."""
    return plan.world_size // plan.ways(BATCH_AXES) * min(plan.ways(BATCH_AXES), work.parts)


def explain_idle(plan: ParallelPlan, found: Sequence[Prediction], work: Work, ranks: int, heads: int) -> list[Remark]:
    """Says why some ranks have no work."""
    busy = count_busy(plan, work)
    fuller = [each for each in found if count_busy(each.plan, work) > busy]
    if not fuller:
        return [remark("idle_ranks" if heads and found else "batch_only", busy=busy, ranks=ranks)]
    own, best = found[0], min(fuller, key=lambda each: (not each.fits, each.seconds))
    if own.fits and not best.fits:
        return [remark("fuller_lacks", busy=busy, plan=str(best.plan))]
    if own.seconds > best.seconds:
        return []  # it is tried
    told = {"seconds": format_seconds(own.seconds), "plan": str(best.plan), "more": format_seconds(best.seconds)}
    return [remark("one_faster", **told) if busy == 1 else remark("some_faster", busy=busy, **told)]


def explain_tokens(plan: ParallelPlan, found: Sequence[Prediction], heads: int) -> list[Remark]:
    """Says how the plan shares tokens, and why with ring."""
    remarks = []
    if plan.ulysses > 1:
        remarks.append(remark("ulysses", ulysses=plan.ulysses, heads=heads))
    if plan.ring > 1:
        remarks.append(explain_ring(plan, found, heads))
    return remarks


def explain_ring(plan: ParallelPlan, found: Sequence[Prediction], heads: int) -> Remark:
    """Says why ring shares tokens that Ulysses might share. It compares with the plan that differs in that alone."""
    ranks, told = plan.token_ways, {"ring": plan.ring, "heads": heads, "ranks": plan.token_ways}
    if heads < ranks:
        return remark("ring_heads", **told)
    if not found:  # the order of `list_plans` decided
        is_uneven = -(-heads // ranks) * ranks > UNEVEN * heads
        return remark("ring_uneven" if is_uneven else "ring", **told)
    alike = replace(plan, ulysses=ranks, ring=1, speeds=())
    others = [each for each in found if replace(each.plan, speeds=()) == alike]
    own, other = found[0], min(others, key=lambda each: each.seconds, default=None)
    if other and own.fits >= other.fits and own.seconds < other.seconds:
        seconds = {"seconds": format_seconds(own.seconds), "more": format_seconds(other.seconds)}
        return remark("ring_faster", plan=str(other.plan), **seconds, **told)
    return remark("ring", **told)
