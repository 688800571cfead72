"""Says why auto's exact plan is the one that runs. Each branch names the rule that decided."""

from __future__ import annotations

from collections.abc import Sequence

from ...parallel_backend.axes import BATCH_AXES
from ...parallel_backend.costs.choose import UNEVEN, Tried
from ...parallel_backend.costs.forward import Work
from ...parallel_backend.costs.roofline import Prediction
from ...parallel_backend.plan import ParallelPlan
from ..plan_words import Remark, format_seconds, remark


def explain_choice(found: Sequence[Prediction], tried: Tried | None) -> list[Remark]:
    """Says by which rule auto chose the first of these predictions. Empty if there is no other."""
    if len(found) <= 1:
        return []
    if tried:
        return [remark("tried", at=tried[0], of=tried[1])]
    if found[0].has_run:
        return [remark("fastest_run")]
    if not found[0].fits:
        return [remark("least_of", count=len(found))]
    return [remark("fastest_of", count=sum(each.fits for each in found))]


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
    return [*remarks, *explain_tokens(plan, heads)]


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


def explain_tokens(plan: ParallelPlan, heads: int) -> list[Remark]:
    """Says how the plan shares tokens, and where ulysses could not."""
    remarks = []
    if plan.ulysses > 1:
        remarks.append(remark("ulysses", ulysses=plan.ulysses, heads=heads))
    if plan.ring > 1:
        ranks, told = plan.token_ways, {"ring": plan.ring, "heads": heads, "ranks": plan.token_ways}
        uneven = -(-heads // ranks) * ranks > UNEVEN * heads
        key = "ring_heads" if heads < ranks else "ring_uneven" if uneven else "ring"
        remarks.append(remark(key, **told))
    return remarks
