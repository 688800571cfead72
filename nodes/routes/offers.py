"""Offers other plans where a person's plan cannot run, runs on fewer ranks, or is slower than one device."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from ...parallel_backend.plan import ParallelPlan
from ..workers.group import most_ranks
from .question import Sampled, runs_on_all_ranks

AUTO_OFFER: dict[str, Any] = {"plan": "", "values": None}
SLOWER = 1.05  # times the seconds of one device


def list_offers(
    asked: ParallelPlan | None, plan: ParallelPlan, sampled: Sampled | None, predicted: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Returns the plans to offer in place of the one that runs. asked: by a person; None for auto, in whose place there
    is none. predicted: see `predict_plans`."""
    if asked is None:
        return []
    if plan.world_size < asked.world_size:
        return offer_fitting(asked, sampled)
    if predicted is None:
        return []
    own, alone = predicted["plan"], predicted["one_device"]
    is_alike = own["has_run"] == alone["has_run"] and (alone["fits"] or alone["has_run"])
    return [AUTO_OFFER] if is_alike and own["seconds"] > SLOWER * alone["seconds"] else []


def offer_fitting(asked: ParallelPlan | None, sampled: Sampled | None) -> list[dict[str, Any]]:
    """Offers auto, and the plan with the most ranks that has one degree lower than this one and runs as it is. asked:
    None if its values are no plan."""

    def runs(plan: ParallelPlan) -> bool:
        return plan.world_size > 1 and runs_on_all_ranks(plan, sampled)

    if asked is None:
        return [AUTO_OFFER]
    lower: list[ParallelPlan] = []
    for axis, degree in asked.degrees().items():
        plans = (replace(asked, speeds=(), **{axis: each}) for each in range(min(degree - 1, most_ranks()), 0, -1))
        lower += itertools.islice(filter(runs, plans), 1)
    best = max(lower, key=lambda plan: plan.world_size, default=None)
    return [AUTO_OFFER, *([{"plan": str(best), "values": best.to_json()}] if best else [])]
